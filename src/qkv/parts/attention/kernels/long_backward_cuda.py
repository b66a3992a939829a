"""The way back of attention over long rows on a Hopper GPU: launches the programs of `long_backward.cu`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from qkv.parts import cuda
from qkv.parts.attention.kernels.long_cuda import LOG2_E, OF_WARP, PIECE, as_tiles_want
from qkv.parts.programs import multiprocessors

FILE = Path(__file__).with_name("long_backward.cu")
SIDE = 128  # keys and queries of a tile
OF_ROWS = SIDE + 16  # numbers of its queries, as lanes read them
STAGES, KINDS, WARPS = 2, 3, 8  # tiles of queries on their way; queries, keys, values; warps that multiply
THREADS = 384
ROWS_A_BLOCK, PREPARING = 32, 256  # queries, and threads, of the program that prepares
# Two slots of keys and of values, tiles of queries and what is above them, scores of two tiles, rooms of warps
TILES = 4 + 2 * STAGES + 4 + WARPS * OF_WARP // SIDE
NUMBERS = STAGES * 2 * OF_ROWS + WARPS * KINDS * PIECE  # of queries, and sums of warps
SHARED = TILES * SIDE * PIECE * 2 + NUMBERS * 4 + STAGES * 16 + (2 * STAGES + 5) * 8 + 1024


def back_over_long_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    log_sum: Tensor,
    above: Tensor,
    into: tuple[Tensor, Tensor, Tensor],
    *,
    causal: bool,
    scale: float,
) -> Tensor:
    """Writes the gradients of q, k and v, all [b h s 64] with as many heads, into tensors `as_tiles_want` them.

    Their sums over those slots of a row that a warp has are given back, [8·b 3 h 64]. `o` and `log_sum` are those of
    `long_cuda.attend`, with the same scale, which is above 0.
    """
    (b, heads, queries, _), keys = q.shape, k.shape[2]
    lines, tall = b * heads, -(-queries // SIDE)
    blocks = min(lines, multiprocessors(q.device))
    q, k, v, o, above = (as_tiles_want(each) for each in (q, k, v, o, above))
    levels = log_sum.new_empty(lines, tall, 2, OF_ROWS)
    gathered = log_sum.new_empty(blocks, tall, SIDE, PIECE)
    kept = log_sum.new_empty(b * WARPS, KINDS, heads, PIECE)
    half = q.dtype == torch.float16
    _program("attend_levels", causal, half).launch(
        (lines, tall * SIDE // ROWS_A_BLOCK),
        (o, above, log_sum, levels, queries, heads, tall * SIDE, *_steps_of(o), *_steps_of(above)),
    )
    _program("attend_back", causal, half).launch(
        (blocks, 1),
        (
            *(cuda.tiles_of(each, SIDE, PIECE) for each in (q, k, v, above)),
            *(cuda.tiles_of(each, OF_WARP, PIECE) for each in into),
            *(levels, gathered, kept),
            *(lines, queries, keys, heads),
            *(scale, scale * LOG2_E),
        ),
    )
    return kept


def _steps_of(x: Tensor) -> tuple[int, int, int]:
    """Between slots, rows and heads, in units of 16 bytes."""
    unit = 16 // x.element_size()
    return x.stride(2) // unit, x.stride(0) // unit, x.stride(1) // unit


@cache
def _program(name: str, causal: bool, half: bool) -> cuda.Program:
    numbers = (("CAUSAL", int(causal)), ("HALF", int(half)))
    threads, shared = (PREPARING, 0) if name == "attend_levels" else (THREADS, SHARED)
    return cuda.program(FILE, name, numbers, threads, shared)
