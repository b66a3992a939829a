"""Averages of weights: over the last checkpoints of a run, and moving along while it trains."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.files import copy_into, read_tensors
from qkv.parts.attention.kernels.random_features import drawn_names
from qkv.weights.save import tensors_of


def average_checkpoints(checkpoints: Sequence[Path], drawn: Collection[str] = ()) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints [vaswani2017 §6.1], summed in float64.

    What is not a floating number (a counter in a buffer) is taken from the last, and so are tensors that were `drawn`.
    """
    if not checkpoints:
        raise QkvError("There is no checkpoint to average.")
    sums: dict[str, Tensor] = {}
    newest: dict[str, Tensor] = {}
    for folder in checkpoints:
        file = folder / "model.safetensors"
        newest = read_tensors(file)
        if not sums:
            sums = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in newest.items()}
        if {name: tensor.shape for name, tensor in newest.items()} != {name: sum_.shape for name, sum_ in sums.items()}:
            raise QkvError(f"{file} and {checkpoints[0] / 'model.safetensors'} hold different models; both must agree.")
        for name, tensor in newest.items():
            sums[name] += tensor
    return {
        name: (sums[name] / len(checkpoints)).to(tensor.dtype)
        if tensor.is_floating_point() and name not in drawn
        else tensor
        for name, tensor in newest.items()
    }


class MovingAverage:
    """An exponential moving average of the weights: an update keeps `decay` of it and takes the rest from the model."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._current = tensors_of(model)  # the model's own memory: what an optimizer writes shows here
        self.tensors = {name: tensor.clone() for name, tensor in self._current.items()}
        drawn = drawn_names(model)
        self._floating = [
            name for name, tensor in self.tensors.items() if tensor.is_floating_point() and name not in drawn
        ]
        self._others = self.tensors.keys() - set(self._floating)

    def update(self) -> None:
        averages = [self.tensors[name] for name in self._floating]
        torch._foreach_lerp_(averages, [self._current[name] for name in self._floating], 1 - self.decay)
        for name in self._others:  # a counter has no average, nor have two draws
            self.tensors[name].copy_(self._current[name])

    @contextmanager
    def inside(self) -> Iterator[None]:
        """The model holds the average for the length of the block, then its own weights again."""
        own = {name: tensor.clone() for name, tensor in self._current.items()}
        copy_into(self._current, self.tensors, "The moving average")
        try:
            yield
        finally:
            copy_into(self._current, own, "The model")
