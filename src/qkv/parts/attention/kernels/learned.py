"""Attention that learns by programs of our own: log-sums are kept on the way forward, for the way back. [dao2022 alg.4]

Short rows have programs in Triton, and long ones of the commonest width, on Hopper GPUs, in CUDA C. Where queries, keys
and values come from one product and nothing was done to them, they are read where they lie, and their gradients are
written as the one that the product wants, so that nobody has to join them.

Shapes: b rows, h heads, q queries, k keys, s slots, d width of a head; joined [b s 3·h·d].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkv.parts import cuda
from qkv.parts.attention.kernels.flash_tiled import like_a_stream
from qkv.parts.attention.visibility import Mask, NotPadding
from qkv.parts.programs import has_copy_engine, multiprocessors, runs_operators, runs_our_own

MOST = 256  # queries whose gradient is summed up in one program, and keys that the way forward takes whole
MOST_PADDED = 208  # beside what tells that some of them are padding
MOST_WIDE = 128  # of heads wider than these, up to the widest
WIDE, WIDEST = 64, 128
ENOUGH = 1 << 20  # scores from which on a GPU takes longer than the host that launches a program
NARROW = (torch.bfloat16, torch.float16)
FEW, AT_ONCE = 128, 272  # slots of rows that warpgroups take whole: more than these, up to these
LONGEST = 1024  # slots of long rows: of longer ones, what is gathered of their queries would not stay in L2
FILLED = 0.7  # of all multiprocessors, each of which has a head of a row at a time; with fewer it was not measured


def suits_warpgroups(q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None) -> bool:
    """Whether the program of `short.cu` takes these, of which a GPU's programs are made, if no future is hidden."""
    if documents is not None or {q.shape[3], v.shape[3]} != {WIDE} or k.shape[2] > AT_ONCE:
        return False
    return min(q.shape[2], k.shape[2]) > FEW and _has_warpgroups(q)


def _has_warpgroups(x: Tensor) -> bool:
    return x.is_cuda and has_copy_engine(x.device) and cuda.has_bindings()


def suits_learning(x: Tensor, shape: Sequence[int], keys: int, mask: Mask | None) -> bool:
    """Whether programs take queries of such a shape [b h q d] on the device of x, and as many heads of keys, and pay.

    All of them are `NARROW`. A compiler may ask, who then sees operators. Only padding or the future may be hidden.
    """
    return suits_short_learning(x, shape, keys, mask) or suits_long_learning(x, shape, keys, mask)


def suits_long_learning(x: Tensor, shape: Sequence[int], keys: int, mask: Mask | None) -> bool:
    """The same for rows longer than `MOST`, none of which has padding."""
    b, h, queries, d = shape
    if not runs_operators(x) or d != WIDE or not _has_warpgroups(x):
        return False
    flag = "all" if mask is None else mask.flag
    if flag is None or (flag == "causal" and queries != keys):
        return False
    if not MOST < min(queries, keys) <= max(queries, keys) <= LONGEST:
        return False
    rounds = b * h / multiprocessors(x.device)
    return rounds >= FILLED * math.ceil(rounds)


def suits_short_learning(x: Tensor, shape: Sequence[int], keys: int, mask: Mask | None) -> bool:
    """The same for rows of up to `MOST` slots."""
    b, h, queries, d = shape
    if not runs_operators(x) or d % 8 or d > WIDEST or not has_copy_engine(x.device):
        return False
    padded = padding_of(mask) is not None
    if (mask is not None and mask.flag is None and not padded) or b * h * queries * keys < ENOUGH:
        return False
    return max(queries, keys) <= (MOST_WIDE if d > WIDE else MOST_PADDED if padded else MOST)


def is_long(queries: int, keys: int) -> bool:
    return max(queries, keys) > MOST


def padding_of(mask: Mask | None) -> Tensor | None:
    """Numbers of the keys' documents where those of 0 are seen by no one, and all others by all. [b k]"""
    return mask.key.documents if mask is not None and isinstance(mask.rule, NotPadding) else None


def attend_learning(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, scale: float) -> Tensor:
    """What suits learning, and a scale above 0. [b h q d] [b h k d] [b h k d] → [b h q d]"""
    causal = mask is not None and mask.flag == "causal"
    o: Tensor = _Apart.apply(q, k, v, padding_of(mask), causal, scale)
    return o.transpose(1, 2)


def attend_joined(joined: Tensor, bias: Tensor | None, heads: int, mask: Mask | None, scale: float) -> Tensor:
    """The same of queries, keys and values that lie side by side. [b s 3·h·d] → [b s h·d]

    A bias that was added to them as if it were no parameter [3·h·d] learns here: its gradient costs no pass of its own.
    """
    causal = mask is not None and mask.flag == "causal"
    o: Tensor = _Joined.apply(joined, bias, heads, padding_of(mask), causal, scale)
    return o.flatten(2)


class _Apart(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, causal: bool, scale: float
    ) -> Tensor:
        o, log_sum = _attend(q, k, v, documents, causal, scale)
        ctx.save_for_backward(q, k, v, documents, o, log_sum)
        ctx.how = causal, scale
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, documents, o, log_sum = ctx.saved_tensors
        go_back = _back_at_once if runs_our_own(o) else _back_operator
        return *go_back(above, q, k, v, documents, o, log_sum, *ctx.how), None, None, None


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, joined: Tensor, bias: Tensor | None, heads: int, documents: Tensor | None, causal: bool, scale: float
    ) -> Tensor:
        o, log_sum = _attend(*_parts(joined, heads), documents, causal, scale)
        ctx.save_for_backward(joined, documents, o, log_sum)
        ctx.how = causal, scale
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        joined, documents, o, log_sum = ctx.saved_tensors
        go_back = _joined_back_at_once if runs_our_own(o) else _joined_back_operator
        gradient, of_bias = go_back(above, joined, documents, o, log_sum, *ctx.how)
        return gradient, of_bias if ctx.needs_input_grad[1] else None, None, None, None, None


def _parts(joined: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, as views. [b h s d]"""
    q, k, v = joined.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


def _attend(
    q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    return (_at_once if runs_our_own(q) else _operator)(q, k, v, documents, causal, scale)


def _at_once(
    q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """What heads read [b q h d], and log₂ of each softmax's sum [b h q]."""
    if is_long(q.shape[2], k.shape[2]):
        from qkv.parts.attention.kernels import long_cuda

        log_sum = q.new_empty(q.shape[:3], dtype=torch.float32)
        return long_cuda.attend(q, k, v, causal=causal, scale=scale, log_sum=log_sum).transpose(1, 2), log_sum
    if not causal and suits_warpgroups(q, k, v, documents):
        from qkv.parts.attention.kernels import short_cuda

        log_sum = q.new_empty(q.shape[:3], dtype=torch.float32)
        return short_cuda.attend(q, k, v, scale=scale, log_sum=log_sum).transpose(1, 2), log_sum
    from qkv.parts.attention.kernels import short_triton  # Triton comes with torch's builds for GPUs only

    o, log_sum = short_triton.attend_rows_and_keep(q, k, v, documents, causal=causal, scale=scale)
    return o.transpose(1, 2), log_sum


def _back_at_once(
    above: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    documents: Tensor | None,
    o: Tensor,
    log_sum: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v; each lies in memory as a stream does."""
    into = _like_a_stream(q), _like_a_stream(k), _like_a_stream(v)
    _go_back(above, (q, k, v), documents, o, log_sum, into, causal, scale)
    return into


def _joined_back_at_once(
    above: Tensor, joined: Tensor, documents: Tensor | None, o: Tensor, log_sum: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """The gradient of all three [b s 3·h·d], and that of a bias [3·h·d]."""
    from qkv.parts.sum_norm_triton import of_programs

    gradient, heads = joined.new_empty(joined.shape), o.shape[2]
    kept = _go_back(above, _parts(joined, heads), documents, o, log_sum, _parts(gradient, heads), causal, scale)
    sums = log_sum.new_empty(joined.shape[2])
    of_programs(kept.flatten(1), sums)
    return gradient, sums


def _go_back(
    above: Tensor,
    given: tuple[Tensor, Tensor, Tensor],
    documents: Tensor | None,
    o: Tensor,
    log_sum: Tensor,
    into: tuple[Tensor, Tensor, Tensor],
    causal: bool,
    scale: float,
) -> Tensor:
    """Sums of the gradients over some of the slots of a row, all of which together are all. [n 3 h d]"""
    above, o = above.transpose(1, 2), o.transpose(1, 2)
    if is_long(o.shape[2], given[1].shape[2]):
        from qkv.parts.attention.kernels.long_backward_cuda import back_over_long_rows

        return back_over_long_rows(*given, o, log_sum, above, into, causal=causal, scale=scale)
    from qkv.parts.attention.kernels import short_backward_triton

    return short_backward_triton.back_over_rows(*given, documents, o, log_sum, above, into, causal=causal, scale=scale)


_operator = torch.library.custom_op("qkv::attend_rows", _at_once, mutates_args=())
_back_operator = torch.library.custom_op("qkv::back_over_rows", _back_at_once, mutates_args=())
_joined_back_operator = torch.library.custom_op("qkv::back_over_joined_rows", _joined_back_at_once, mutates_args=())


@_operator.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    b, h, queries, d = q.shape
    return q.new_empty(b, queries, h, d), q.new_empty(b, h, queries, dtype=torch.float32)


@_back_operator.register_fake
def _(
    above: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    documents: Tensor | None,
    o: Tensor,
    log_sum: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return _like_a_stream(q), _like_a_stream(k), _like_a_stream(v)


@_joined_back_operator.register_fake
def _(
    above: Tensor, joined: Tensor, documents: Tensor | None, o: Tensor, log_sum: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    return joined.new_empty(joined.shape), joined.new_empty(joined.shape[2], dtype=torch.float32)


def _like_a_stream(x: Tensor) -> Tensor:
    return like_a_stream(x, x.shape[3])
