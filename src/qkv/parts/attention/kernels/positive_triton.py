"""Attention by positive random features on a GPU: launches the programs of `positive_programs.py` and of the way back.

What waits for the way back is q, k, v, o, two numbers a query, and the sums of every chunk: m·(e + 8) numbers for C
tokens. In bfloat16 with 256 features, widths of 64 and chunks of 128 these are 0.75 times what q, k and v are.

Shapes: b rows, h heads, n tokens, d width of a key, e of a value, m features, t chunks, l lines (b·h), and `wide`
columns of sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor

from qkv.parts.attention.kernels import positive_backward_programs as backward_programs
from qkv.parts.attention.kernels import positive_programs as programs
from qkv.parts.attention.kernels.flash_tiled import like_a_stream
from qkv.parts.attention.kernels.launch_triton import launch
from qkv.parts.attention.kernels.prefix_sums import beside

LOG2_E = 1 / math.log(2)
WIDEST = {torch.bfloat16: 128, torch.float32: 64}  # key or value
CHUNKS, NUMBERS = 32, 128  # of a step of `carry`


def fits(q: Tensor, v: Tensor) -> bool:
    """Whether the programs have room for such tokens."""
    return max(q.shape[3], v.shape[3]) <= WIDEST.get(q.dtype, 0)


@dataclass(frozen=True)
class Steps:
    """How a program works: features at once, warps, and loads under way at once."""

    features: int
    warps: int
    stages: int

    @property
    def options(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": self.stages}


@dataclass(frozen=True)
class Layout:
    """All that programs are told of how tensors lie in memory, worked out once for tensors of one shape."""

    lines: int
    queries: int  # chunks of them
    keys: int
    strides: tuple[int, ...]  # of rows, heads and tokens: q, k, v
    of_queries: tuple[int | float, ...]  # the sizes a program over chunks of queries is told
    of_keys: tuple[int | float, ...]
    wide: int
    blocks: int  # of features, each with a level of its own
    constants: dict[str, Any]
    gather: Steps
    read: Steps
    back_to_queries: Steps
    back_to_keys: Steps


@lru_cache(maxsize=1024)
def layout_of(
    shapes: tuple[torch.Size, ...], strides: tuple[tuple[int, ...], ...], dtype: torch.dtype, m: int, scale: float
) -> Layout:
    (b, h, queries, d), (_, _, keys, _), (_, _, _, e) = shapes
    narrow = dtype == torch.bfloat16
    chunk, steps = chunk_and_steps(max(d, e), narrow)
    steps = tuple(Steps(min(each.features, _filled(m)), each.warps, each.stages) for each in steps)
    whole = queries % chunk == keys % chunk == m % max(each.features for each in steps) == 0
    # Tiles of directions and of sums take turns in one place of shared memory. Where they are not equally wide, ptxas
    # 12.8 finds the place of the second by a register that it never writes: NaN, or an illegal access.
    width = _filled(max(d, e))
    constants = {
        "FITS": whole and d == e == width,
        "PRECISION": "tf32" if narrow else "tf32x3",  # of float32 alone: three products of rounded numbers
        "C": chunk,
        "D": width,
        "E": width,
    }
    of_queries, of_keys = triton.cdiv(queries, chunk), triton.cdiv(keys, chunk)
    sizes = (m, scale / 2, d, e, (e + beside(e)) // 8)
    return Layout(
        b * h, of_queries, of_keys, tuple(step for each in strides for step in each[:3]),
        (h, queries, of_queries, *sizes), (h, keys, of_keys, *sizes), e + beside(e),
        triton.cdiv(m, steps[0].features), constants, *steps,
    )  # fmt: skip


# Compiled for an H200 no program spills registers in bfloat16; in float32 the way back to keys does. None is timed yet.
def chunk_and_steps(width: int, narrow: bool) -> tuple[int, tuple[Steps, ...]]:
    """Tokens of a chunk; how sums are gathered, how they are read, and the ways back to queries and to keys."""
    if not narrow:
        return 32, (Steps(32, 4, 1), Steps(16, 8, 1), Steps(32, 8, 1), Steps(16, 8, 1))
    if width <= 64:
        return 128, (Steps(64, 4, 2), Steps(64, 8, 2), Steps(64, 8, 2), Steps(64, 8, 2))
    return 128, (Steps(64, 8, 2), Steps(64, 8, 2), Steps(32, 8, 2), Steps(32, 8, 1))


def attend(q: Tensor, k: Tensor, v: Tensor, directions: Tensor, real: Tensor | None, scale: float) -> Tensor:
    """q [b h q d], k [b h k d], v [b h k e], directions [m d], real [b k] → [b h q e]: queries see all real keys."""
    return _Attention.apply(q, k, v, directions * math.sqrt(scale), real, None, None, scale, False)[0]


def looking_back(
    q: Tensor, k: Tensor, v: Tensor, directions: Tensor, real: Tensor | None, scale: float,
    of_values: Tensor | None = None, largest: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(o [b h n e], of_values [b h m wide] in float32, largest [b h 1 1]) of tokens that see those before them.

    `of_values` and `largest`: the sums, given before the first token and found after the last, and the logarithm of
    what they were made smaller by, as `random_features.Sums` have them.
    """
    return _Attention.apply(q, k, v, directions * math.sqrt(scale), real, of_values, largest, scale, True)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, w: Tensor, real: Tensor | None, of_values: Tensor | None,
        largest: Tensor | None, scale: float, causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        q, k, v, w = _in_line(q), _in_line(k), _in_line(v), w.to(q.dtype).contiguous()
        layout = layout_of((q.shape, k.shape, v.shape), (q.stride(), k.stride(), v.stride()), q.dtype, len(w), scale)
        given = (q, k, v, w, q if real is None else real.expand(len(k), k.shape[2]).contiguous().view(torch.int8))
        constants = {"PADDED": real is not None, **layout.constants}
        sums, tops, after, last = _gathered(given, of_values, largest, layout, constants, kept=causal)
        seen = sums if causal else after.to(sums.dtype)  # alike for the programs, which multiply in that precision
        constants = {"CAUSAL": causal, **constants}
        o, level = like_a_stream(q, v.shape[3]), torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        inverse = torch.empty_like(level)
        launch(
            programs.read, (layout.queries, layout.lines), (*given, seen, tops, o, level, inverse),
            (*layout.strides, *layout.of_queries), {**constants, "F": layout.read.features}, **layout.read.options,
        )  # fmt: skip
        ctx.save_for_backward(*given, seen, tops, o, level, inverse)
        ctx.layout, ctx.constants, ctx.largest = layout, constants, largest
        ctx.mark_non_differentiable(last)
        ctx.set_materialize_grads(False)
        return o, after, last

    @staticmethod
    def backward(ctx: Any, above: Tensor | None, to_after: Tensor | None, _: None) -> tuple[Any, ...]:
        *given, seen, tops, o, level, inverse = ctx.saved_tensors
        layout, constants, (q, k, v, w, _) = ctx.layout, ctx.constants, given
        above = torch.zeros_like(o) if above is None else above.transpose(1, 2).contiguous().transpose(1, 2)
        pulls, difference, to_before = _pulled(q, w, o, above, level, inverse, tops, to_after, layout, constants)
        dq, dk, dv = like_a_stream(q, q.shape[3]), like_a_stream(k, k.shape[3]), like_a_stream(v, v.shape[3])
        kept = (tops, above, level, inverse, difference)
        launch(
            backward_programs.back_to_queries, (layout.queries, layout.lines), (*given, seen, *kept, dq),
            (*layout.strides, *layout.of_queries), {**constants, "F": layout.back_to_queries.features},
            **layout.back_to_queries.options,
        )  # fmt: skip
        launch(
            backward_programs.back_to_keys, (layout.keys, layout.lines), (*given, pulls, *kept, dk, dv),
            (*layout.strides, *layout.of_keys), {**constants, "F": layout.back_to_keys.features},
            **layout.back_to_keys.options,
        )  # fmt: skip
        to_sums = None
        if ctx.largest is not None:
            to_sums = to_before * torch.exp(ctx.largest + _share(w) - tops[:, :1].view_as(ctx.largest) / LOG2_E)
        return dq, dk, dv, None, None, to_sums, None, None, None


def _gathered(
    given: tuple[Tensor, ...], of_values: Tensor | None, largest: Tensor | None, layout: Layout,
    constants: dict[str, Any], *, kept: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(what each chunk starts from [l t m wide], log₂ of what that was made smaller by [l t], the sums after the last
    chunk [b h m wide] and their `largest` [b h 1 1]). Not `kept`: the first is of no use, the second of the end [l]."""
    q, k, v, w, real = given
    lines, chunks, wide, steps = layout.lines, layout.keys, layout.wide, layout.gather
    sums = k.new_empty(lines, chunks, len(w), wide)
    levels = torch.empty(lines, chunks, layout.blocks, dtype=torch.float32, device=k.device)
    launch(
        programs.gather, (chunks * layout.blocks, lines), (k, v, w, real, sums, levels),
        (*layout.strides[3:], *layout.of_keys), {**constants, "F": steps.features}, **steps.options,
    )  # fmt: skip
    after = torch.empty(*q.shape[:2], len(w), wide, dtype=torch.float32, device=k.device)
    tops = torch.empty((lines, chunks) if kept else lines, dtype=torch.float32, device=k.device)
    last = torch.empty(*q.shape[:2], 1, 1, dtype=torch.float32, device=k.device)
    begun = None if of_values is None or largest is None else (of_values.contiguous(), largest.contiguous())
    _carry(sums, levels, begun, (after, last, tops), layout, steps.features * wide, _share(w), kept=kept)
    return sums, tops, after, last


def _pulled(
    q: Tensor, w: Tensor, o: Tensor, above: Tensor, level: Tensor, inverse: Tensor, tops: Tensor,
    to_after: Tensor | None, layout: Layout, constants: dict[str, Any],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(what keys of each chunk get of later chunks [l t m wide], or of all [l m wide] where each sees each; do·o over
    the denominator [b h n]; what the sums before the first token get [b h m wide])"""
    causal, steps = constants["CAUSAL"], layout.gather
    pulls, difference = q.new_empty(layout.lines, layout.queries, len(w), layout.wide), torch.empty_like(level)
    heads, queries, chunks, features, _, *widths = layout.of_queries
    launch(
        backward_programs.pull, (layout.queries * layout.blocks, layout.lines),
        (q, w, o, above, level, inverse, pulls, difference),
        (*layout.strides[:3], heads, queries, chunks, features, *widths),
        {**{name: constants[name] for name in ("FITS", "PRECISION", "C", "D", "E")}, "F": steps.features},
        **steps.options,
    )  # fmt: skip
    if not causal:
        every = pulls.sum(1, dtype=torch.float32)
        return every.to(pulls.dtype), difference, every
    to_before = torch.empty(*q.shape[:2], len(w), layout.wide, dtype=torch.float32, device=q.device)
    begun = None if to_after is None else (to_after.contiguous(), tops)
    _carry(pulls, tops, begun, (to_before, tops, tops), layout, len(w) * layout.wide, 0.0, back=True)
    return pulls, difference, to_before


def _carry(
    sums: Tensor, levels: Tensor, begun: tuple[Tensor, Tensor] | None, ended: tuple[Tensor, Tensor, Tensor],
    layout: Layout, span: int, share: float, *, back: bool = False, kept: bool = True,
) -> None:  # fmt: skip
    elements, blocks = sums.shape[2] * sums.shape[3], 1 if back else layout.blocks
    launch(
        programs.carry, (blocks * triton.cdiv(span, NUMBERS), layout.lines),
        (sums, levels, *(begun or (levels, levels)), *ended), (sums.shape[1], blocks, span, elements, share),
        {
            "BACK": back,
            "STARTED": begun is not None,
            "KEPT": kept,
            "PRECISION": layout.constants["PRECISION"],
            "T": CHUNKS,
            "W": NUMBERS,
            "B": triton.next_power_of_2(blocks),
        },
        num_warps=4 if sums.dtype == torch.bfloat16 else 8,
        num_stages=3 if sums.dtype == torch.bfloat16 else 2,
    )  # fmt: skip


def _share(w: Tensor) -> float:
    """Of 1/√m in the logarithms of features, which the programs leave out."""
    return math.log(len(w)) / 2


def _in_line(x: Tensor) -> Tensor:
    """The programs want the numbers of one token side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _filled(width: int) -> int:
    return triton.next_power_of_2(max(width, 16))  # a product takes 16 at least
