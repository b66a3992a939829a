"""Hashed attention on a GPU: launches the programs of `lsh_programs.py`.

Shapes: b rows, h heads, n tokens, d width of a key, e of a value, r rounds, s slots of a
sorted row (n filled up to chunks).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from qkv.parts.attention.kernels import lsh_programs as programs


def attend(
    q: Tensor, k: Tensor, v: Tensor, order: Tensor, real: Tensor | None, *,
    chunk: int, before: int, after: int, causal: bool, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(each round's attention [b h r n e], the logarithm of each softmax's sum [b h r n]), tokens in their places.

    q, k [b h n d], v [b h n e], order [b h r s]: tokens by number as sorted, numbers of n and more are filling.
    """
    return _Chunked.apply(q, k, v, order.int(), real, chunk, before, after, causal, scale)


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, order: Tensor, real: Tensor | None,
        chunk: int, before: int, after: int, causal: bool, scale: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        (b, h, n, _), rounds = q.shape, order.shape[2]
        o = q.new_empty(b, h, rounds, n, v.shape[3])
        log_sum = torch.empty(b, h, rounds, n, dtype=torch.float32, device=q.device)
        given = q if real is None else real.to(torch.int8)
        settings = (before, after, scale, causal, real is not None)
        programs.forward[_grid(order, chunk)](
            q, k, v, given, order, o, log_sum, *_strides(q, k, v), *_sizes(q, v, order, before, after, scale),
            CAUSAL=causal, PADDED=real is not None, **_widths(q, v, chunk), num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, given, order, o, log_sum)
        ctx.settings, ctx.chunk = settings, chunk
        return o, log_sum

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Any, ...]:
        q, k, v, given, order, o, log_sum = ctx.saved_tensors
        before, after, scale, causal, padded = ctx.settings
        to_o, to_log_sum = above
        difference = (o.float() * to_o.float()).sum(-1) - to_log_sum
        (b, h, n, d), rounds, e = q.shape, order.shape[2], v.shape[3]
        dq, dk = (torch.empty(b, h, rounds, n, d, dtype=torch.float32, device=q.device) for _ in range(2))
        dv = torch.empty(b, h, rounds, n, e, dtype=torch.float32, device=q.device)
        programs.backward[_grid(order, ctx.chunk)](
            q, k, v, given, order, to_o.contiguous(), log_sum, difference, dq, dk, dv, *_strides(q, k, v),
            *_sizes(q, v, order, before, after, scale), CAUSAL=causal, PADDED=padded, **_widths(q, v, ctx.chunk),
            num_warps=4, num_stages=1,
        )  # fmt: skip
        dq, dk, dv = (x.sum(2).to(q.dtype) for x in (dq, dk, dv))  # every round has looked at every token once
        return dq, dk, dv, None, None, None, None, None, None, None


def _grid(order: Tensor, chunk: int) -> tuple[int, int]:
    b, h, rounds, slots = order.shape
    return rounds * slots // chunk, b * h


def _strides(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    return *q.stride()[:3], *k.stride()[:3], *v.stride()[:3]


def _sizes(q: Tensor, v: Tensor, order: Tensor, before: int, after: int, scale: float) -> tuple[Any, ...]:
    return q.shape[1], order.shape[2], q.shape[2], order.shape[3], before, after, scale, q.shape[3], v.shape[3]


def _widths(q: Tensor, v: Tensor, chunk: int) -> dict[str, Any]:
    wide, high = (triton.next_power_of_2(max(x.shape[3], 16)) for x in (q, v))
    return {"PRECISION": "ieee" if q.dtype == torch.float32 else "tf32", "C": chunk, "D": wide, "E": high}
