"""Attention of short rows that see everything, on a Hopper GPU: launches the program of `short.cu`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.parts import cuda
from qkv.parts.attention.kernels.flash_tiled import like_a_stream
from qkv.parts.attention.kernels.long_cuda import LOG2_E, OF_GROUP, OF_WARP, PIECE, as_tiles_want
from qkv.parts.programs import multiprocessors

FILE = Path(__file__).with_name("short.cu")
PART = 16  # keys whose values are multiplied at once


class Room(NamedTuple):
    """Where all keys of a row find place at once, and how a block goes through its rows."""

    keys: int
    groups: int  # of warps, which take turns
    slots: int  # tiles of keys or values that are there or on their way
    q_slots: int  # and of queries

    @property
    def threads(self) -> int:
        return 128 + 128 * self.groups

    @property
    def shared(self) -> int:
        """Bytes of shared memory, as the program lays it out."""
        rows = self.slots * self.keys + self.q_slots * OF_GROUP
        return rows * PIECE * 2 + (2 * self.slots + 2 * self.q_slots + 1) * 8 + 1024


# With 272 keys the scores of three groups would not stay in registers.
ROOMS = Room(160, 3, slots=5, q_slots=10), Room(208, 3, slots=5, q_slots=10), Room(272, 2, slots=4, q_slots=10)


def attend(q: Tensor, k: Tensor, v: Tensor, *, scale: float, log_sum: Tensor | None = None) -> Tensor:
    """softmax(scale q kᵀ) v, where it `suits_warpgroups`; log₂ of each softmax's sum goes to `log_sum`.

    What is learned runs among programs of others, who wait for the end anyway; all else may begin early.
    """
    (b, heads, queries, width), (_, key_heads, keys, _) = q.shape, k.shape
    room = next(room for room in ROOMS if room.keys >= keys)
    q, k, v = as_tiles_want(q), as_tiles_want(k), as_tiles_want(v)
    o = like_a_stream(q, width)
    arguments = (
        cuda.tiles_of(q, OF_GROUP, PIECE),
        cuda.tiles_of(k, room.keys // 2, PIECE),
        cuda.tiles_of(v, room.keys // 2, PIECE),
        cuda.tiles_of(o, OF_WARP, PIECE),
        o if log_sum is None else log_sum,
        *(b * heads, queries, keys, heads, heads // key_heads),
        scale * LOG2_E,
    )
    hidden = -(-(room.keys - keys) // PART) * PART
    program = _program(room, hidden, log_sum is not None, q.dtype == torch.float16)
    program.launch((multiprocessors(q.device), 1), arguments, early=log_sum is None)
    return o


@cache
def _program(room: Room, hidden: int, keeps: bool, half: bool) -> cuda.Program:
    numbers = {
        "KEYS": room.keys,
        "HIDDEN": hidden,
        "GROUPS": room.groups,
        "SLOTS": room.slots,
        "Q_SLOTS": room.q_slots,
        "KEEPS": int(keeps),
        "HALF": int(half),
    }
    return cuda.program(FILE, "attend", tuple(numbers.items()), room.threads, room.shared)
