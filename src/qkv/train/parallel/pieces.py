"""What a rank holds of each tensor of a model, of an optimizer and of an average: pieces of tensors by their names.

A process that is alone holds each tensor in one piece. The names are those of a model folder, whoever holds what: the
rows of joined maps are told apart here, because what splits a joined matrix elsewhere would gather it first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.divided import is_divided
from qkv.parts.linear import JoinedLinear

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Place = tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """A box out of a tensor: where it begins in each dimension, and its numbers, which are the holder's own memory."""

    name: str
    shape: Place  # of the whole tensor
    start: Place
    tensor: Tensor

    @property
    def is_whole(self) -> bool:
        return tuple(self.tensor.shape) == self.shape

    @property
    def key(self) -> str:
        """What it is called among pieces: a whole tensor by its name alone."""
        return self.name if self.is_whole else f"{self.name}@{','.join(map(str, self.start))}"


def whole_piece(name: str, tensor: Tensor) -> Piece:
    return Piece(name, tuple(tensor.shape), (0,) * tensor.ndim, tensor)


def in_place_of(pieces: Sequence[Piece], tensors: Mapping[str, Tensor]) -> list[Piece]:
    """The same pieces of other tensors (by key), such as an average's."""
    if differing := {piece.key for piece in pieces} ^ tensors.keys():
        raise QkvError(f"The average is not one of this model: only one of the two has {min(differing)}.")
    return [replace(piece, tensor=tensors[piece.key]) for piece in pieces]


def pieces_of(model: nn.Module) -> list[Piece]:
    """What this rank holds of a model's tensors; a shared one (tied embeddings) stands once, under its first name.

    Of a tensor that others hold all of there is an empty piece, so that every rank knows all names.
    """
    shard_again(model)
    pieces = []
    seen: set[tuple[object, ...]] = set()
    for owner, prefix, kind, tensor in _saved(model):
        shape, start, own = _held(prefix + kind, tensor)
        # The storage and not the address: tensors that occupy no memory have none.
        place = (own.untyped_storage()._cdata, own.storage_offset(), own.numel())
        if place in seen:
            continue
        seen.add(place)
        if isinstance(owner, JoinedLinear) and kind in ("weight", "bias"):
            pieces += _apart(owner, prefix, kind, Piece(prefix + kind, shape, start, own))
        else:
            pieces.append(Piece(prefix + kind, shape, start, own))
    return pieces


def state_pieces(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Piece]:
    """`decoder.blocks.0.norm.weight/exp_avg` and so on; a plain number becomes a tensor of one.

    Joined maps are one parameter, and so is their state: one map after the other, however ranks have them.
    """
    shard_again(model)
    owners = parameter_owners(model)
    return [
        piece
        for parameter, entries in optimizer.state.items()
        for key, value in entries.items()
        for piece in pieces_of_state(owners[parameter], parameter, key, torch.as_tensor(value))
    ]


def pieces_of_state(owner: tuple[str, nn.Module], parameter: Tensor, key: str, value: Tensor) -> list[Piece]:
    """What this rank holds of one entry of a parameter's state."""
    name, module = owner
    if not is_divided(parameter) or value.ndim == 0:
        return [whole_piece(f"{name}/{key}", _local(value))]
    if not is_divided(value) or value.shape != parameter.shape:
        raise QkvError(
            f"The optimizer's {key} of {name} is not shaped like the parameter, so ranks cannot each hold a part of "
            "it: train with adamw or lion, or in one process."
        )
    shape, start, own = _held(f"{name}/{key}", value)
    piece = Piece(f"{name}/{key}", shape, start, own)
    return _in_order(module, name.rpartition(".")[2], piece) if isinstance(module, JoinedLinear) else [piece]


def parameter_owners(model: nn.Module) -> dict[Tensor, tuple[str, nn.Module]]:
    """Of each parameter its name and the module that it belongs to, the first of those that share it."""
    modules = dict(model.named_modules())
    return {parameter: (name, modules[name.rpartition(".")[0]]) for name, parameter in model.named_parameters()}


def shard_again(model: nn.Module) -> None:
    """Give back what FSDP gathered and left whole after a forward pass.

    The parameters are then the rank's own parts, and what is written to them shows in the next pass.
    """
    for module in model.modules():
        for hook in list(module._state_dict_pre_hooks.values()):  # FSDP does it before parameters are saved
            hook(module, "", False)


def _saved(model: nn.Module) -> Iterator[tuple[nn.Module, str, str, Tensor]]:
    """(module, what its tensors' names begin with, which of them, tensor) in the order of the model's state."""
    for name, module in model.named_modules(remove_duplicate=False):
        prefix = f"{name}." if name else ""
        passing = module._non_persistent_buffers_set
        held: dict[str, Any] = {**module._parameters}
        held |= {kind: buffer for kind, buffer in module._buffers.items() if kind not in passing}
        for kind, tensor in held.items():
            if tensor is not None:
                yield module, prefix, kind, tensor


def _local(tensor: Tensor) -> Tensor:
    """The memory itself, without its history."""
    own = tensor.detach()
    return own.to_local() if is_divided(own) else own


def _held(name: str, tensor: Tensor) -> tuple[Place, Place, Tensor]:
    """The shape of the whole, where this rank's part of it begins, and that part."""
    shape, own = tuple(tensor.shape), _local(tensor)
    start, size = [0] * len(shape), list(shape)
    if is_divided(tensor):
        coordinate = tensor.device_mesh.get_coordinate()
        assert coordinate is not None, "every rank is somewhere in every mesh"
        for way, dimension in _cuts(name, tensor):
            each = -(-size[dimension] // tensor.device_mesh.size(way))  # as `torch.chunk` cuts: the last may be short
            before = min(coordinate[way] * each, size[dimension])
            start[dimension] += before
            size[dimension] = min(each, size[dimension] - before)
    if tuple(own.shape) != tuple(size):
        raise QkvError(f"This rank holds {list(own.shape)} of {name}, where {size} was expected: it cannot be saved.")
    return shape, tuple(start), own


def _cuts(name: str, tensor: DTensor) -> list[tuple[int, int]]:
    """(dimension of the mesh, dimension of the tensor) in the order in which the tensor was cut.

    FSDP cuts what tensor or expert ranks have cut already, though it stands before them in the mesh: it says so by
    strides.
    """
    first: list[tuple[int, int]] = []
    then: list[tuple[int, int]] = []
    for way, placement in enumerate(tensor.placements):
        if placement.is_partial():
            raise QkvError(f"The numbers of {name} on this rank are summands, not numbers of the tensor.")
        if not placement.is_replicate():
            strided = type(placement).__name__ == "_StridedShard"
            (then if strided else first).append((way, placement.dim))  # type: ignore[attr-defined]
    return [*first, *reversed(then)]


def _runs(owner: JoinedLinear, kind: str, piece: Piece) -> Iterator[tuple[str, int, Tensor]]:
    """The rows of a piece of a joined matrix: (map, row within it where they begin, rows), in their order."""
    named = owner.outputs if kind == "weight" else owner.biases
    begin, end, at = piece.start[0], piece.start[0] + len(piece.tensor), 0
    for part, first, rows in owner.stretches():
        if part not in named:
            continue
        low, high = max(at, begin), min(at + rows, end)
        if low < high:
            yield part, first + low - at, piece.tensor[low - begin : high - begin]
        at += rows


def _rows_of_maps(owner: JoinedLinear, kind: str) -> dict[str, int]:
    """Of the whole maps, also where ranks hold a part of each."""
    named = owner.outputs if kind == "weight" else owner.biases
    rows = dict.fromkeys(named, 0)
    for part, _, count in owner.stretches():
        if part in rows:
            rows[part] += count
    return rows


def _apart(owner: JoinedLinear, prefix: str, kind: str, piece: Piece) -> list[Piece]:
    """Each map under its own name."""
    pieces = []
    runs = list(_runs(owner, kind, piece))
    for part, rows in _rows_of_maps(owner, kind).items():
        name, shape = f"{prefix}{part}.{kind}", (rows, *piece.shape[1:])
        own = [Piece(name, shape, (row, *piece.start[1:]), tensor) for which, row, tensor in runs if which == part]
        pieces += own or [Piece(name, shape, (0,) * len(shape), piece.tensor[:0])]
    return pieces


def _in_order(owner: JoinedLinear, kind: str, piece: Piece) -> list[Piece]:
    """One map after the other under the name of all."""
    before, at = {}, 0
    for part, rows in _rows_of_maps(owner, kind).items():
        before[part] = at
        at += rows
    runs: list[tuple[int, int]] = []  # (row of the whole, rows); what follows on is one run
    for part, row, tensor in _runs(owner, kind, piece):
        whole = before[part] + row
        if runs and sum(runs[-1]) == whole:
            runs[-1] = (runs[-1][0], runs[-1][1] + len(tensor))
        else:
            runs.append((whole, len(tensor)))
    pieces, at = [], 0
    for whole, rows in runs or [(0, 0)]:
        start = (whole, *piece.start[1:])
        pieces.append(Piece(piece.name, piece.shape, start, piece.tensor[at : at + rows]))
        at += rows
    return pieces
