"""Attention of short rows on a GPU: launches its programs, with pieces and steps that suit the sizes at hand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
from torch import Tensor

from qkv.parts.attention.kernels import short_programs
from qkv.parts.attention.kernels.flash_tiled import like_a_stream
from qkv.parts.attention.kernels.flash_triton import Steps
from qkv.parts.attention.kernels.launch_triton import launch

LINE = Steps(64, 64, 4, 3)  # of documents in line
LEAST = 16  # rows and columns that a product of tiles takes at least
# Keys of a row in up to three powers of two. Scores of 64 queries with 272 keys stay in registers; a piece that is
# filled in part takes some more of them, so the last one is small where there are many.
PIECES = (
    (16, 0, 0), (32, 0, 0), (32, 16, 0), (64, 0, 0), (64, 16, 0), (64, 32, 0), (64, 32, 16), (128, 0, 0),
    (128, 16, 0), (128, 32, 0), (128, 32, 16), (128, 64, 0), (128, 64, 16), (128, 64, 32), (128, 64, 64),
    (128, 128, 16),
)  # fmt: skip
# Where sums are kept of these, a few registers too many would leave a multiprocessor two programs in place of three.
TIGHT, FEWER = (128, 64, 16), {"maxnreg": 168}


@dataclass(frozen=True)
class RowSteps:
    """How a program goes through its rows: queries at a time, shares of a row's queries, warps, loads under way."""

    queries: int
    shares: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Plan:
    """A launch, worked out once for tensors of one shape."""

    grid: tuple[int, int]
    numbers: tuple[int, ...]
    widths: tuple[int, int]
    constants: dict[str, object]
    options: dict[str, int]


def attend_rows(
    q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, *, causal: bool, scale: float | None
) -> Tensor:
    """As `exact`, of rows that `PIECES` hold. `documents` [b|1 k] numbers the keys; those of 0 are seen by no one."""
    q, scale = scaled(q, scale)
    return _attend(q, k, v, documents, causal, scale, None)


def attend_rows_and_keep(
    q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """The same, and log₂ of each softmax's sum [b h q], for a way back. The scale is above 0."""
    log_sum = q.new_empty(q.shape[:3], dtype=torch.float32)
    return _attend(q, k, v, documents, causal, scale, log_sum), log_sum


def _attend(
    q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, causal: bool, scale: float, log_sum: Tensor | None
) -> Tensor:
    q, k, v = side_by_side(q), side_by_side(k), side_by_side(v)
    o = like_a_stream(q, v.shape[3])
    if documents is not None:
        documents = side_by_side(documents)
    shapes, strides = (q.shape, k.shape, v.shape), (q.stride(), k.stride(), v.stride())
    plan = _plan_of_rows(shapes, strides, row_of(documents), causal, documents is not None, log_sum is not None)
    launch(
        short_programs.attend_rows,
        plan.grid,
        (q, k, v, q if documents is None else documents, o, q if log_sum is None else log_sum),
        (*plan.numbers, scale, *plan.widths),
        plan.constants,
        **plan.options,
    )
    return o


def attend_in_line(
    q: Tensor, k: Tensor, v: Tensor, documents: Tensor, bounds: Tensor, *, causal: bool, scale: float | None
) -> Tensor:
    """Each document by itself. q [1 h s d], k [1 g s d], v [1 g s e], documents [1 s], bounds [n + 1] → [1 h s e]"""
    q, scale = scaled(q, scale)
    q, k, v = side_by_side(q), side_by_side(k), side_by_side(v)
    o = like_a_stream(q, v.shape[3])
    (_, h, slots, d), key_heads, e = q.shape, k.shape[1], v.shape[3]
    wide, high = filled_up(d), filled_up(e)
    launch(
        short_programs.attend_in_line,
        (-(-slots // LINE.queries) * h, 1),
        (q, k, v, documents, bounds, o),
        (*q.stride()[1:3], *k.stride()[1:3], *v.stride()[1:3], h, h // key_heads, slots, scale, d, e),
        {
            "CAUSAL": causal,
            "FILLED": (wide, high) == (d, e),
            "M": LINE.queries,
            "N": LINE.keys,
            "D": wide,
            "E": high,
            "EARLY": True,
        },
        **LINE.options,
    )
    return o


@lru_cache(maxsize=1024)
def _plan_of_rows(
    shapes: tuple[torch.Size, ...],
    strides: tuple[tuple[int, ...], ...],
    documents_row: int,
    causal: bool,
    padded: bool,
    kept: bool,
) -> Plan:
    (b, h, queries, d), (_, key_heads, keys, _), (_, _, _, e) = shapes
    wide, high, pieces = filled_up(d), filled_up(e), pieces_of(keys)
    steps = row_steps(queries, keys)
    return Plan(
        (b * h, steps.shares),
        (*(step for each in strides for step in each[:3]), documents_row, h, h // key_heads, queries, keys),
        (d, e),
        {
            "CAUSAL": causal,
            "PADDED": padded,
            "FITS": sum(pieces) == keys,
            "FILLED": (wide, high) == (d, e),
            "KEPT": kept,
            "FIRST": pieces[0],
            "SECOND": pieces[1],
            "THIRD": pieces[2],
            "M": steps.queries,
            "D": wide,
            "E": high,
            "EARLY": not kept,  # what is learned runs among programs of others, who wait for the end anyway
        },
        {"num_warps": steps.warps, "num_stages": steps.stages, **(FEWER if kept and pieces == TIGHT else {})},
    )


def pieces_of(keys: int) -> tuple[int, int, int]:
    """The pieces that hold so many keys with the least room to spare. 0 stands for a piece that is not needed."""
    return next(pieces for pieces in PIECES if sum(pieces) >= keys)


def row_steps(queries: int, keys: int) -> RowSteps:
    """So many queries at a time that few are missing and their scores stay in registers."""
    if queries <= 16:
        return RowSteps(16, 1, 1 if keys <= 64 else 4, 1)
    return RowSteps(32, 1, 2, 1) if queries <= 32 and keys <= 64 else RowSteps(64, 1, 4, 1)


def filled_up(width: int) -> int:
    return max(LEAST, triton.next_power_of_2(width))


def scaled(q: Tensor, scale: float | None) -> tuple[Tensor, float]:
    """Programs look for the largest product, which is the largest score where the scale is above 0."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return (q, float(scale)) if scale > 0 else (q * scale, 1.0)


def row_of(documents: Tensor | None) -> int:
    """From the numbers of one row to those of the next; there may be one for all."""
    return 0 if documents is None or len(documents) == 1 else documents.stride(0)


def side_by_side(x: Tensor) -> Tensor:
    """Programs want the numbers of one token side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()
