"""Which weights a training leaves: averaged, best, moving or last, the first of these that there is."""

from collections.abc import Callable

from torch import nn

from qkv.errors import QkvError
from qkv.files import copy_into
from qkv.parts.attention.kernels.random_features import drawn_names
from qkv.train.average import MovingAverage, average_checkpoints
from qkv.train.checkpoint import Checkpoints
from qkv.train.settings import TrainSettings
from qkv.train.state import TrainState
from qkv.weights.save import tensors_of


def _whole(checkpoints: Checkpoints, newest: int, say: Callable[[str], None]) -> list[int]:
    """The steps of the newest checkpoints, but for those that were damaged since, which are told."""
    whole = []
    for step in checkpoints.steps()[-newest:]:
        try:
            checkpoints.verify(step)
        except QkvError as error:
            say(f"{error} It is left out of the average.")
        else:
            whole.append(step)
    return whole


def load_final_weights(
    model: nn.Module,
    checkpoints: Checkpoints,
    settings: TrainSettings,
    state: TrainState,
    moving: MovingAverage | None,
    say: Callable[[str], None],
) -> str:
    """Put the final weights into the model; returns what a person calls them."""
    own = tensors_of(model)
    if settings.average > 0:
        paths = [checkpoints.path(step) for step in _whole(checkpoints, settings.average, say)]
        copy_into(own, average_checkpoints(paths, drawn_names(model)), "The average")
        return f"mean of the last {len(paths)} checkpoints" if len(paths) > 1 else "weights of the last step"
    kind = "moving average" if moving is not None else "weights"
    if state.best_step is not None and state.best_step != state.step:
        try:
            best = checkpoints.read(state.best_step)
        except QkvError as error:
            say(f"{error} Keeping the last weights instead of these, which were the best.")
        else:
            copy_into(own, best.average or best.model, best.folder)
            return f"{kind} of step {state.best_step:,}, the best by {settings.watch}"
    if moving is not None:
        copy_into(own, moving.tensors, "The moving average")
    return f"{kind} of the last step"
