"""Hashed attention on a GPU: launches the programs of `hashing_programs.py` and `lsh_programs.py`.

Shapes: b rows, h heads, n tokens, d width of a key, e of a value, r rounds, m columns of all rotations of a round,
s slots of a sorted row (n filled up to chunks).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from qkv.parts.attention.kernels import hashing_programs as hashing
from qkv.parts.attention.kernels import lsh_programs as programs
from qkv.parts.attention.kernels.flash_backward_programs import difference_of
from qkv.parts.attention.kernels.flash_tiled import like_a_stream
from qkv.parts.attention.kernels.launch_triton import launch

BLOCKS = 128  # of a row at the most, each of which is counted by itself


@dataclass(frozen=True)
class Chunks:
    """How a sorted row is cut, and what a chunk's queries read."""

    size: int
    before: int
    after: int
    causal: bool
    scale: float


def attend(
    q: Tensor, k: Tensor | None, v: Tensor, rotations: Tensor, factors: tuple[int, ...], real: Tensor | None,
    slots: int, chunks: Chunks,
) -> Tensor:  # fmt: skip
    """q, k [b h n d], v [b h n e], rotations [h d r m], real [b n] → [b h n e]. No k: the queries made unit vectors."""
    return _Hashed.apply(q, k, v, rotations, factors, real, slots, chunks)


class _Hashed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor | None, v: Tensor, rotations: Tensor, factors: tuple[int, ...],
        real: Tensor | None, slots: int, chunks: Chunks,
    ) -> Tensor:  # fmt: skip
        q, v = _in_line(q), _in_line(v)
        k = None if k is None else _in_line(k)
        order = sorted_by_bucket(buckets(q if k is None else k, rotations, factors, real), slots)
        o, log_sum = combine(*attend_by_rounds(q, k, v, order, real, chunks))
        ctx.save_for_backward(q, k, v, order, o, log_sum)
        ctx.real, ctx.chunks = real, chunks
        return o

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Any, ...]:
        q, k, v, order, o, log_sum = ctx.saved_tensors
        gradients = go_back(q, k, v, order, o, log_sum, ctx.real, ctx.chunks, above[0])
        return *gradients, None, None, None, None, None


@dataclass(frozen=True, eq=False)
class Buckets:
    """The bucket of every token [b h r n], and how many of each there are in every block, and in all [b·h·r · ·]."""

    numbers: Tensor
    counts: Tensor


def buckets(x: Tensor, rotations: Tensor, factors: tuple[int, ...], real: Tensor | None) -> Buckets:
    """Where each round's rotations, of one factor or two, put each token; padding is in a bucket behind all others."""
    (b, h, n, d), rounds = x.shape, rotations.shape[2]
    first, second = (*factors, 1)[:2]
    block = _block(n)
    blocks = triton.cdiv(n, block)
    numbers = torch.empty(b, h, rounds, n, dtype=torch.int32, device=x.device)
    counts = torch.zeros(b * h * rounds, blocks + 1, first * second + 1, dtype=torch.int32, device=x.device)
    tokens, width = 128, _filled(d)
    launch(
        hashing.hashed,
        (triton.cdiv(n, tokens), b * h),
        (x, rotations, _given(real, x), numbers, counts),
        (*x.stride()[:3], h, rounds, n, first, second, blocks, d),
        {
            "PADDED": real is not None,
            "FITS": n % tokens == 0 and width == d,
            "PRECISION": _precision(x),
            "B": block,
            "M": tokens,
            "D": width,
            "W": 16 if max(first, second) <= 64 else 32,
        },
        num_warps=8,
    )
    return Buckets(numbers, counts)


def sorted_by_bucket(found: Buckets, slots: int) -> Tensor:
    """Tokens by number, bucket by bucket and within one as in the row; numbers of n and more are filling. [b h r s]"""
    b, h, rounds, n = found.numbers.shape
    lines, blocks, bins = found.counts.shape
    order = torch.empty(b, h, rounds, slots, dtype=torch.int32, device=found.numbers.device)
    grid = (triton.cdiv(bins, 64), lines)
    launch(hashing.begun, grid, (found.counts,), (bins, blocks - 1), {"R": 32, "W": 64}, num_warps=4)
    grid = (triton.cdiv(slots, 128), lines)
    sizes = {"B": _block(n), "M": 128, "N": 32}
    tensors, numbers = (found.numbers, found.counts, order), (n, slots, bins, blocks - 1)
    launch(hashing.placed, grid, tensors, numbers, sizes, num_warps=8)
    return order


def _block(length: int) -> int:
    """Tokens that are counted together: few, so that each looks back over few; but counts are of every block."""
    return max(128, triton.next_power_of_2(triton.cdiv(length, BLOCKS)))


def attend_by_rounds(
    q: Tensor, k: Tensor | None, v: Tensor, order: Tensor, real: Tensor | None, chunks: Chunks
) -> tuple[Tensor, Tensor]:
    """(each round's attention [b h r n e], log₂ of each softmax's sum [b h r n]); of a single round both are final."""
    (b, h, n, _), (*_, rounds, slots), e = q.shape, order.shape, v.shape[3]
    keys = q if k is None else k
    o = like_a_stream(q, e)[:, :, None] if rounds == 1 else q.new_empty(b, h, rounds, n, e)
    log_sum = torch.empty(b, h, rounds, n, dtype=torch.float32, device=q.device)
    launch(
        programs.forward,
        (rounds * slots // chunks.size, b * h),
        (q, keys, v, _given(real, q), order, o, log_sum),
        (*_strides(q, keys, v), h, rounds, n, slots, chunks.scale, q.shape[3], e),
        {"ONCE": rounds == 1, **_common(q, k, v, slots, real, chunks)},
        num_warps=_warps(q, chunks),
        num_stages=1,
    )
    return o, log_sum


def combine(each: Tensor, log_sums: Tensor) -> tuple[Tensor, Tensor]:
    """(all rounds together [b h n e], log₂ of their sum as the way back wants it [b h n])"""
    b, h, rounds, n, e = each.shape
    if rounds == 1:
        return each[:, :, 0], log_sums[:, :, 0]
    o, log_sum = like_a_stream(each[:, :, 0], e), log_sums.new_empty(b, h, n)
    grid, tensors = (triton.cdiv(n, 64), b * h), (each, log_sums, o, log_sum)
    launch(programs.combined, grid, tensors, (h, rounds, n, e), {"M": 64, "E": _filled(e)}, num_warps=4)
    return o, log_sum


def go_back(
    q: Tensor, k: Tensor | None, v: Tensor, order: Tensor, o: Tensor, log_sum: Tensor, real: Tensor | None,
    chunks: Chunks, from_above: Tensor,
) -> tuple[Tensor, Tensor | None, Tensor]:  # fmt: skip
    """The gradients of q, k and v."""
    (b, h, n, d), (*_, rounds, slots), e = q.shape, order.shape, v.shape[3]
    above = from_above.transpose(1, 2).contiguous().transpose(1, 2)  # [b h n e], as a stream lies in memory
    difference = torch.empty_like(log_sum)
    grid = (triton.cdiv(n, 128), b * h)
    launch(difference_of, grid, (o, above, difference), (h, n, e), {"M": 128, "E": _filled(e)}, num_warps=4)
    keys = q if k is None else k
    dq, dv = like_a_stream(q, d), like_a_stream(v, e)
    dk = dq if k is None else like_a_stream(k, d)  # not touched where there are no keys
    sums = (dq, dk, dv)
    if rounds > 1:
        sum_q, sum_v = (x.new_empty(x.shape, dtype=torch.float32) for x in (q, v))
        sums = (sum_q, sum_q if k is None else torch.empty_like(sum_q), sum_v)
    tensors = (q, keys, v, _given(real, q), order, above, log_sum, difference, dq, dk, dv, *sums)
    grid, common, strides = (slots // chunks.size, b * h), _common(q, k, v, slots, real, chunks), _strides(q, keys, v)
    for number in range(rounds):
        numbers = (*strides, h, rounds, number, n, slots, chunks.scale, d, e)
        launch(programs.backward, grid, tensors, numbers, common, num_warps=_warps(q, chunks), num_stages=1)
    return dq, None if k is None else dk, dv


def _in_line(x: Tensor) -> Tensor:
    """The programs want the numbers of one token side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def fits(q: Tensor, v: Tensor, chunk: int) -> bool:
    """Whether the programs can hold chunks of such tokens: tiles that a product takes, and room for eight of them."""
    width, narrow = max(q.shape[3], v.shape[3]), q.dtype in (torch.bfloat16, torch.float16)
    known = (narrow or q.dtype == torch.float32) and chunk in (16, 32, 64, 128)
    return known and chunk * _filled(width) <= (128 * 128 if narrow else 64 * 64)


def _warps(q: Tensor, chunks: Chunks) -> int:
    return 8 if chunks.size > 64 or (q.dtype == torch.float32 and chunks.size > 32) else 4


def _filled(width: int) -> int:
    return triton.next_power_of_2(max(width, 16))  # a product takes 16 at least


def _given(real: Tensor | None, x: Tensor) -> Tensor:
    return x if real is None else real.view(torch.int8)


def _precision(x: Tensor) -> str:
    """Of float32: three products of rounded numbers, as good as one of whole ones; the narrower types have but one."""
    return "tf32x3" if x.dtype == torch.float32 else "tf32"


def _strides(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    return *q.stride()[:3], *k.stride()[:3], *v.stride()[:3]


def _common(q: Tensor, k: Tensor | None, v: Tensor, slots: int, real: Tensor | None, chunks: Chunks) -> dict[str, Any]:
    d, e = q.shape[3], v.shape[3]
    return {
        "BEFORE": chunks.before,
        "AFTER": chunks.after,
        "CAUSAL": chunks.causal,
        "PADDED": real is not None,
        "UNIT": k is None,
        "FITS": slots == q.shape[2] and _filled(d) == d and _filled(e) == e,
        "PRECISION": _precision(q),
        "C": chunks.size,
        "D": _filled(d),
        "E": _filled(e),
    }
