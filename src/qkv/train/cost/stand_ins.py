"""Kernels of our own that read numbers, as shapes know them.

A map of tiles is made from a rule and not from numbers of a batch, so it can be made in memory and then be a shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from qkv.parts.attention.blocks import TileLists, TileMap, tile_map
from qkv.parts.attention.kernels import flash
from qkv.parts.attention.tokens import Tokens
from qkv.parts.attention.visibility import Mask
from qkv.train.cost.programs import programs_noted
from qkv.train.cost.shaped import Shaped, is_there, replaced, without_numbers
from qkv.train.cost.tracer import Tracer


@contextmanager
def own_kernels(tracer: Tracer) -> Iterator[None]:
    """Inside, kernels of our own run on shapes."""

    def map_of_shapes(mask: Mask) -> TileMap:
        return _shapes_of(_map_in_memory(mask, tracer.place), tracer.place)

    with ExitStack() as stack:
        # A teacher that an objective brings to the device keeps its numbers.
        stack.enter_context(replaced(nn.Module, "_apply", lambda module, *_, **__: module))
        stack.enter_context(replaced(flash, "tile_map", map_of_shapes))
        if tracer.place.type == "cuda":
            stack.enter_context(programs_noted(tracer.note))
            stack.enter_context(replaced(Shaped, "counts_programs", True))
        yield


def _map_in_memory(mask: Mask, place: torch.device) -> TileMap:
    """The map of a mask whose documents, where a batch has any, are taken to fill their rows.

    Made by the GPU that is asked about where it is there: a CPU takes seconds for long rows, and a training that
    follows finds the map made.
    """
    device = torch.device("cuda", place.index or 0) if is_there(place) else torch.device("cpu")
    torch_function_off = torch._C.DisableTorchFunction()
    with torch_function_off, _disable_current_modes():
        query, key = (_whole(side, device) for side in (mask.query, mask.key))
        return tile_map(Mask(mask.rule, query, key, device))


def _whole(side: Tokens, device: torch.device) -> Tokens:
    if side.documents is None:
        return side
    return Tokens(side.size, side.start, documents=torch.ones(1, side.size, dtype=torch.long, device=device))


def _shapes_of(tiles: TileMap, place: torch.device) -> TileMap:
    def lists(of: TileLists) -> TileLists:
        return TileLists(*(without_numbers(getattr(of, name), place) for name in of.__dataclass_fields__))

    return TileMap(tiles.rows, lists(tiles.of_queries), lists(tiles.of_keys), without_numbers(tiles.patterns, place))
