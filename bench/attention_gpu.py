"""Our FlashAttention against torch's kernels: dense under a look-ahead mask, and in windows on long rows.

    python bench/attention_gpu.py

Peers: SDPA's FlashAttention-2 backend, SDPA's cuDNN backend, compiled FlexAttention. A dense peer computes the window's
rows without the window: that is what skipping is measured against.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from gpu import milliseconds, report
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from qkv.parts.attention.kernels.flash import flash
from qkv.parts.attention.kernels.flex import flex
from qkv.parts.attention.visibility import Causal, Mask, Rule, Tokens, Window

DENSE = [(8, 16, 2048, 64), (2, 16, 8192, 64), (4, 16, 4096, 128), (1, 16, 16384, 128)]  # rows, heads, slots, width
WINDOWS = [(1, 8, 16_384, 64, 512), (1, 8, 65_536, 64, 512), (1, 8, 16_384, 128, 512)]


def sdpa(backend: SDPBackend) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return attend


def ours(kernel: Any, rule: Rule, slots: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    mask = Mask(rule, Tokens(slots), Tokens(slots), "cuda")
    return lambda q, k, v: kernel(q, k, v, mask)


def measured(attend: Callable[[Tensor, Tensor, Tensor], Tensor], b: int, h: int, n: int, d: int) -> tuple[float, float]:
    """Milliseconds (forward, forward and backward)."""
    q, k, v = (torch.randn(b, n, h, d, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(3))
    with torch.no_grad():
        forward = milliseconds(lambda: attend(q, k, v))
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    pull = torch.randn(b, n, h, d, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    return forward, milliseconds(lambda: torch.autograd.grad(attend(q, k, v), (q, k, v), pull))


def compared(case: str, flops: float, times: dict[str, tuple[float, float]]) -> list[dict[str, Any]]:
    """A row for each kernel. `flops` are those of the forward pass; going back takes two and a half times as many."""
    mine = times["qkv flash"]
    return [
        {
            "case": case,
            "kernel": name,
            "forward ms": round(forward, 3),
            "TFLOP/s": round(flops / forward / 1e9),
            "both ms": round(both, 3),
            "both TFLOP/s": round(3.5 * flops / both / 1e9),
            "ours is faster by": f"{forward / mine[0]:.2f} / {both / mine[1]:.2f}",
        }
        for name, (forward, both) in times.items()
    ]


def main() -> None:
    peers = {"FlashAttention-2": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
    rows = []
    for b, h, n, d in DENSE:
        ways = {"qkv flash": ours(flash, Causal(), n), "flex": ours(flex, Causal(), n)}
        ways |= {name: sdpa(backend) for name, backend in peers.items()}
        times = {name: measured(way, b, h, n, d) for name, way in ways.items()}
        rows += compared(f"look-ahead {b}×{h}×{n}×{d}", 4 * b * h * d * n * (n + 1) / 2, times)
    for b, h, n, d, window in WINDOWS:
        rule = Causal() & Window(window)
        ways = {"qkv flash": ours(flash, rule, n), "flex": ours(flex, rule, n)}
        ways |= {f"{name}, dense": sdpa(backend) for name, backend in peers.items()}
        times = {name: measured(way, b, h, n, d) for name, way in ways.items()}
        flops = 4 * b * h * d * (n * window - window * (window - 1) / 2)
        rows += compared(f"window {window}, {b}×{h}×{n}×{d}", flops, times)
    report("attention_gpu", rows, {"precision": "bfloat16", "TFLOP/s": "counts what is seen alone"})


if __name__ == "__main__":
    main()
