"""Exponentials on a GPU: launches the programs of `exponentials_programs.py`.

Shapes: b rows, h heads, n tokens, d width of x, m features.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from qkv.parts.attention.kernels import exponentials_programs as programs

TOKENS, AT_ONCE, BACK = 64, 256, 64  # of a program, features of one tile of it, and on the way back


class Exponentials(torch.autograd.Function):
    """exp(x wᵀ - largest) and `largest`; w, which is not learned, is as x is. [b h n d] → [b h n m], [b h n 1]"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        x, w = (each if each.stride(-1) == 1 else each.contiguous() for each in (x, w))
        (b, h, n, d), m = x.shape, len(w)
        o, largest = x.new_empty(b, h, n, m), x.new_empty(b, h, n, 1, dtype=torch.float32)
        at_once = min(AT_ONCE, max(16, triton.next_power_of_2(m)))
        programs.forward[triton.cdiv(n, TOKENS), b * h](
            x, w, o, largest, *x.stride()[:3], h, n, m, d,
            M=TOKENS, D=max(16, triton.next_power_of_2(d)), F=at_once, ONCE=m <= at_once, num_warps=8,
        )  # fmt: skip
        ctx.save_for_backward(o, w)
        ctx.mark_non_differentiable(largest)
        return o, largest

    @staticmethod
    def backward(ctx: Any, pull: Tensor, _: Tensor) -> tuple[Tensor, None]:
        o, w = ctx.saved_tensors
        pull = pull if pull.stride(-1) == 1 else pull.contiguous()
        (b, h, n, m), d = o.shape, w.shape[1]
        dx = o.new_empty(b, h, n, d)
        programs.backward[triton.cdiv(n, TOKENS), b * h](
            pull, o, w, dx, *pull.stride()[:3], h, n, m, d,
            M=TOKENS, D=max(16, triton.next_power_of_2(d)), F=BACK, num_warps=4,
        )  # fmt: skip
        return dx, None
