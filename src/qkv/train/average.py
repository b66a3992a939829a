"""Averages of weights: over the last checkpoints of a run, and moving along while it trains."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.attention.kernels.random_features import drawn_names
from qkv.train.checkpoint_read import files_of
from qkv.train.parallel.pieces import Piece, in_place_of, pieces_of, shard_again, whole_piece
from qkv.train.parallel.stored_pieces import StoredTensors


def average_checkpoints(checkpoints: Sequence[Path], drawn: Collection[str] = ()) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints [vaswani2017 §6.1], summed in float64.

    What is not a floating number (a counter in a buffer) is taken from the last, and so are tensors that were `drawn`.
    """
    if not checkpoints:
        raise QkvError("There is no checkpoint to average.")
    stored = [stored_model(folder) for folder in checkpoints]
    mean = {name: torch.empty(stored[-1].shape(name), dtype=stored[-1].dtype(name)) for name in stored[-1]}
    average_into([whole_piece(name, tensor) for name, tensor in mean.items()], stored, drawn)
    return mean


def stored_model(folder: Path) -> StoredTensors:
    """The weights of a checkpoint, in one file or in one for each rank."""
    names = [file.name for file in folder.iterdir()]
    return StoredTensors(files_of(folder, names, "model") or [folder / "model.safetensors"])


def average_into(pieces: Sequence[Piece], stored: Sequence[StoredTensors], drawn: Collection[str] = ()) -> None:
    """Fill pieces of tensors with their mean over several checkpoints; one piece at a time is summed."""
    shapes = [{name: each.shape(name) for name in each} for each in stored]
    for each, held in zip(stored, shapes, strict=True):
        if held != shapes[0]:
            raise QkvError(f"{each.origin} and {stored[0].origin} hold different models; both must agree.")
    stored[-1].check(pieces)
    for piece in pieces:
        if not piece.tensor.is_floating_point() or piece.name in drawn:
            stored[-1].read_into([piece])
            continue
        total = torch.zeros(piece.tensor.shape, dtype=torch.float64)
        for each in stored:
            one = torch.empty(piece.tensor.shape, dtype=each.dtype(piece.name))
            each.read_into([Piece(piece.name, piece.shape, piece.start, one)])
            total += one
        with torch.no_grad():
            # First to the type that is stored: what is written is what one process would write.
            piece.tensor.copy_((total / len(stored)).to(stored[-1].dtype(piece.name)))


class MovingAverage:
    """An exponential moving average of the weights: an update keeps `decay` of it and takes the rest from the model.

    Of many ranks each averages what it holds.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._model = model
        self._pieces = pieces_of(model)
        self._current = {piece.key: piece.tensor for piece in self._pieces}  # what an optimizer writes shows here
        self.tensors = {key: tensor.clone() for key, tensor in self._current.items()}  # by the keys of the pieces
        drawn = drawn_names(model)
        self._floating = [
            piece.key for piece in self._pieces if piece.tensor.is_floating_point() and piece.name not in drawn
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
        own = {key: tensor.clone() for key, tensor in self._current.items()}
        self._put(self.tensors)
        try:
            yield
        finally:
            self._put(own)

    def put_into_model(self) -> None:
        self._put(self.tensors)

    @torch.no_grad()
    def _put(self, tensors: Mapping[str, Tensor]) -> None:
        shard_again(self._model)
        for piece in in_place_of(self._pieces, tensors):
            self._current[piece.key].copy_(piece.tensor)
