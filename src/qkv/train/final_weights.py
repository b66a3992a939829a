"""Which weights a training leaves: averaged, best, moving or last, the first of these that there is."""

from collections.abc import Callable

from torch import nn

from qkv.errors import QkvError
from qkv.parts.attention.kernels.random_features import drawn_names
from qkv.train.average import MovingAverage, average_into
from qkv.train.checkpoint import Checkpoint, Checkpoints
from qkv.train.parallel.pieces import pieces_of
from qkv.train.settings import TrainSettings
from qkv.train.state import TrainState

LAST = "weights of the last step"


def _whole(checkpoints: Checkpoints, newest: int, say: Callable[[str], None]) -> list[Checkpoint]:
    """The newest checkpoints, but for those that were damaged since, which are told."""
    whole = []
    for step in checkpoints.steps()[-newest:]:
        try:
            whole.append(checkpoints.read(step))
        except QkvError as error:
            say(f"{error} It is left out of the average.")
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
    if settings.average == 1 and checkpoints.steps()[-1:] == [state.step]:  # what would be read is in the model
        return LAST
    own = pieces_of(model)
    if settings.average > 0:
        whole = _whole(checkpoints, settings.average, say)
        if not whole:
            raise QkvError("There is no checkpoint to average.")
        average_into(own, [checkpoint.model for checkpoint in whole], drawn_names(model))
        return f"mean of the last {len(whole)} checkpoints" if len(whole) > 1 else LAST
    kind = "moving average" if moving is not None else "weights"
    if state.best_step is not None and state.best_step != state.step:
        try:
            best = checkpoints.read(state.best_step)
        except QkvError as error:
            say(f"{error} Keeping the last weights instead of these, which were the best.")
        else:
            (best.average or best.model).fill(own)
            return f"{kind} of step {state.best_step:,}, the best by {settings.watch}"
    if moving is not None:
        moving.put_into_model()
    return f"{kind} of the last step"
