"""Attention of long rows on a Hopper GPU: launches the program of `long.cu`, with tiles that suit the sizes at hand."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.parts import cuda
from qkv.parts.attention.kernels.flash_tiled import like_a_stream
from qkv.parts.programs import multiprocessors

FILE = Path(__file__).with_name("long.cu")
LOG2_E = 1.4426950408889634
PIECE = 64  # numbers that lie side by side in shared memory: 128 bytes, swizzled
OF_GROUP, OF_WARP = 64, 16  # queries


class Steps(NamedTuple):
    """How a block goes through its queries and keys."""

    groups: int  # of warps, which take turns
    keys: int  # of a tile
    slots: int  # tiles of keys or values on their way
    q_slots: int  # tiles of queries that are there at once
    by_hand: int = 0  # one of so many powers is computed without the unit for them, or 0: none

    @property
    def threads(self) -> int:
        return 128 + 128 * self.groups

    def shared(self, width: int) -> int:
        """Bytes of shared memory, as the program lays it out."""
        rows = self.slots * self.keys + (self.q_slots + 1) * self.groups * OF_GROUP  # the last: what is stored
        return rows * width * 2 + (2 * self.slots + 2 * self.q_slots * self.groups + 1) * 8 + 1024


# A third group takes its share of keys that come from L2, and makes weights while two multiply.
NARROW_HEADS = Steps(3, 128, slots=8, q_slots=2), Steps(3, 112, slots=8, q_slots=2)
WIDE_HEADS = Steps(2, 128, slots=4, q_slots=1)


def steps_of(width: int, keys: int, causal: bool) -> Steps:
    """Tiles of keys that leave the least of the last one empty. Those of a causal row begin where its queries do."""
    if width > PIECE:
        return WIDE_HEADS
    if causal:
        return NARROW_HEADS[0]
    return min(NARROW_HEADS, key=lambda steps: -(-keys // steps.keys) * steps.keys)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    scale: float,
    log_sum: Tensor | None = None,
    steps: Steps | None = None,
) -> Tensor:
    """softmax(scale q kᵀ) v, [b h q d] [b g k d] [b g k d] → [b h q d]; heads of 64 or 128 numbers, a scale above 0.

    log₂ of each softmax's sum goes to `log_sum` [b h q].
    """
    (b, heads, queries, width), (_, key_heads, keys, _) = q.shape, k.shape
    steps = steps or steps_of(width, keys, causal)
    q, k, v = as_tiles_want(q), as_tiles_want(k), as_tiles_want(v)
    o = like_a_stream(q, width)
    tiles = b * heads * -(-queries // (steps.groups * OF_GROUP))
    arguments = (
        cuda.tiles_of(q, OF_GROUP, PIECE),
        cuda.tiles_of(k, steps.keys, PIECE),
        cuda.tiles_of(v, steps.keys, PIECE),
        cuda.tiles_of(o, OF_WARP, PIECE),
        o if log_sum is None else log_sum,
        *(tiles, queries, keys, heads, heads // key_heads),
        scale * LOG2_E,
    )
    program = _program(steps, width, causal, log_sum is not None, q.dtype == torch.float16)
    program.launch((min(tiles, multiprocessors(q.device)), 1), arguments)
    return o


def as_tiles_want(x: Tensor) -> Tensor:
    """The numbers of a token side by side, all else at multiples of 16 bytes."""
    fits = x.stride(3) == 1 and x.data_ptr() % 16 == 0
    fits &= all(step > 0 and step * x.element_size() % 16 == 0 for step in x.stride()[:3])
    return x if fits else x.clone(memory_format=torch.contiguous_format)


@cache
def _program(steps: Steps, width: int, causal: bool, keeps: bool, half: bool) -> cuda.Program:
    numbers = {
        "D": width,
        "KEYS": steps.keys,
        "GROUPS": steps.groups,
        "SLOTS": steps.slots,
        "Q_SLOTS": steps.q_slots,
        "CAUSAL": int(causal),
        "KEEPS": int(keeps),
        "HALF": int(half),
        "BY_HAND": steps.by_hand,
    }
    return cuda.program(FILE, "attend", tuple(numbers.items()), steps.threads, steps.shared(width))
