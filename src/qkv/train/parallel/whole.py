"""The tensors of a model that ranks hold in pieces, put together on the first of them: to write an ordinary folder."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.train.parallel.pieces import Piece, Place, pieces_of
from qkv.train.parallel.world import World

Box = tuple[Place, Place]  # where it begins, and how large it is


def whole_tensors(model: nn.Module, world: World | None = None) -> Iterator[tuple[str, Tensor | None]]:
    """(name, whole tensor) of all that a model saves, one after the other, by the names of a model folder.

    All ranks take part. The first gets the tensors, in memory of the host; the others get None.
    """
    pieces: dict[str, list[Piece]] = {}
    for piece in pieces_of(model):
        pieces.setdefault(piece.name, []).append(piece)
    if world is None or world.size == 1:
        for name, (whole,) in pieces.items():
            yield name, whole.tensor
        return
    held = {name: [(each.start, tuple(each.tensor.shape)) for each in own] for name, own in pieces.items()}
    told: list[Any] = [None] * world.size
    dist.all_gather_object(told, held, group=world.host)
    for name, own in pieces.items():
        yield name, _gathered(own, _holders([each[name] for each in told]), world)


def _holders(held: list[list[Box]]) -> dict[Box, int]:
    """The first rank that holds each box."""
    holders: dict[Box, int] = {}
    for rank, boxes in enumerate(held):
        for box in boxes:
            if math.prod(box[1]):
                holders.setdefault(box, rank)
    return holders


def _gathered(own: list[Piece], holders: dict[Box, int], world: World) -> Tensor | None:
    mine = {(piece.start, tuple(piece.tensor.shape)): piece.tensor for piece in own}
    if sum(math.prod(size) for _, size in holders) != math.prod(own[0].shape):
        raise QkvError(f"The ranks do not hold all of {own[0].name}, or hold some of it in different pieces.")
    if not world.first:
        for box, rank in holders.items():
            if rank == world.rank:
                dist.send(_bytes(mine[box].cpu().contiguous()), 0, group=world.host)
        return None
    whole = torch.empty(own[0].shape, dtype=own[0].tensor.dtype)
    for (start, size), rank in holders.items():
        if rank == 0:
            part = mine[start, size]
        else:
            part = torch.empty(size, dtype=whole.dtype)
            dist.recv(_bytes(part), rank, group=world.host)
        whole[tuple(slice(begin, begin + length) for begin, length in zip(start, size, strict=True))] = part
    return whole


def _bytes(tensor: Tensor) -> Tensor:
    """The same memory: a tensor of any kind of number can be sent so."""
    return tensor.view(-1).view(torch.uint8)
