"""Our FlashAttention against torch's kernels: under a look-ahead mask, in windows, in patterns that leave out slots,
and with a bias that all rows share and learn, as T5 has it.

    python bench/attention_gpu.py
    python bench/attention_gpu.py --bias-alone   (a few seconds; writes nothing)

Peers: SDPA's FlashAttention-2 and cuDNN backends. A dense peer computes a pattern's rows without the pattern: that is
what skipping is measured against.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from gpu import milliseconds, report
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from qkv.parts.attention.kernels.choose import Kernel
from qkv.parts.attention.kernels.flash import flash
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.visibility import (
    Causal,
    Chunks,
    Everything,
    Fixed,
    GlobalTokens,
    Mask,
    Rule,
    Strided,
    Tokens,
    Window,
)

PEAK = 989  # TFLOP/s of an H200's matrix products in bfloat16, as its maker says
DENSE = [(8, 16, 2048, 64), (2, 16, 8192, 64), (4, 16, 4096, 128), (1, 16, 16_384, 128)]  # rows, heads, slots, width
WINDOW = 512
LONG_ROWS = [(2, 16, 16_384, 64), (1, 16, 16_384, 128), (1, 16, 65_536, 64), (1, 8, 65_536, 128)]
BIASED = [(32, 12, 512, 64), (32, 12, 128, 64), (8, 12, 2048, 64)]  # the first two are those of a T5's step
DROPOUTS = (0.0, 0.1)
PATTERNS: dict[str, Rule] = {
    "strided: window 128 and every 128th": Causal() & (Window(128) | Strided(128)),
    "fixed: blocks of 128, 8 of each a summary": Causal() & Fixed(128, 8),
    "dilated: 256 keys, every 4th": Causal() & Window(256, step=4),
    "window 256 and 16 global tokens": Window(256) | GlobalTokens(16),
    "chunks of 64 and the one before": Causal() & Chunks(64),
}
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Times = tuple[float, float]  # milliseconds: forward, forward and backward


def sdpa(backend: SDPBackend, causal: bool = True) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return attend


PEERS = {"FlashAttention-2": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}


def ours(rule: Rule, slots: int) -> Attend:
    mask = Mask(rule, Tokens(slots), Tokens(slots), "cuda")
    return lambda q, k, v: flash(q, k, v, mask)


def measured(attend: Attend, b: int, h: int, n: int, d: int, also: tuple[Tensor, ...] = ()) -> Times:
    """`also`: what else learns."""
    q, k, v = (torch.randn(b, n, h, d, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(3))
    with torch.no_grad():
        forward = milliseconds(lambda: attend(q, k, v), budget=40)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    pull = torch.randn(b, n, h, d, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    return forward, milliseconds(lambda: torch.autograd.grad(attend(q, k, v), (q, k, v, *also), pull), budget=60)


def compared(case: str, shape: tuple[int, ...], flops: float | None, times: dict[str, Times]) -> list[dict[str, Any]]:
    """A row for each kernel. `flops` are those of the forward pass; going back takes two and a half times as many."""
    mine = times["qkv flash"]
    rows = []
    for name, (forward, both) in times.items():
        row: dict[str, Any] = {"case": case, "rows × heads × tokens × width": " × ".join(map(str, shape))}
        row |= {"kernel": name, "forward ms": round(forward, 3), "both ms": round(both, 3)}
        row["ours is faster by"] = f"{forward / mine[0]:.2f} / {both / mine[1]:.2f}"
        if flops is not None:
            speeds = flops / forward / 1e9, 3.5 * flops / both / 1e9
            row["TFLOP/s"] = f"{speeds[0]:.0f} / {speeds[1]:.0f}"
            row["share of the limit"] = f"{speeds[0] / PEAK:.0%} / {speeds[1] / PEAK:.0%}"
        rows.append(row)
    return rows


def with_bias(kernel: Kernel, dropout: float, b: int, h: int, n: int, d: int) -> Times:
    """A bias for each head, which all rows share and learn; every query sees every key."""
    mask = Mask(Everything(), Tokens(n), Tokens(n), "cuda")
    bias = torch.randn(1, h, n, n, device="cuda", dtype=torch.bfloat16).requires_grad_()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return kernel(q, k, v, mask, bias, dropout=dropout)

    return measured(attend, b, h, n, d, also=(bias,))


def biased() -> list[dict[str, Any]]:
    rows = []
    for shape in BIASED:
        b, h, n, d = shape
        for dropout in DROPOUTS:
            ways: dict[str, Kernel] = {"qkv flash": flash, "SDPA, memory-efficient": fused}
            times = {name: with_bias(kernel, dropout, *shape) for name, kernel in ways.items()}
            rows += compared(f"learned bias, dropout {dropout}", shape, 4 * b * h * d * n * n, times)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bias-alone", action="store_true", help="time learned biases alone, and write nothing")
    if parser.parse_args().bias_alone:
        print(*biased(), sep="\n")
        return
    rows = biased()
    for b, h, n, d in DENSE:
        ways = {"qkv flash": ours(Causal(), n)} | {name: sdpa(backend) for name, backend in PEERS.items()}
        times = {name: measured(way, b, h, n, d) for name, way in ways.items()}
        rows += compared("look-ahead", (b, h, n, d), 4 * b * h * d * n * (n + 1) / 2, times)
    for b, h, n, d in LONG_ROWS:
        ways = {"qkv flash": ours(Causal() & Window(WINDOW), n)}
        ways |= {f"{name}, dense": sdpa(backend) for name, backend in PEERS.items()}
        times = {name: measured(way, b, h, n, d) for name, way in ways.items()}
        flops = 4 * b * h * d * (n * WINDOW - WINDOW * (WINDOW - 1) / 2)
        rows += [
            row if "dense" not in row["kernel"] else {**row, "TFLOP/s": "", "share of the limit": ""}
            for row in compared(f"window {WINDOW}", (b, h, n, d), flops, times)
        ]
    b, h, n, d = LONG_ROWS[0]
    dense = {causal: measured(sdpa(PEERS["cuDNN"], causal), b, h, n, d) for causal in (True, False)}
    for name, rule in PATTERNS.items():
        times = {"qkv flash": measured(ours(rule, n), b, h, n, d), "cuDNN, dense": dense["global" not in name]}
        rows += compared(name, (b, h, n, d), None, times)
    figures = "forward / forward and backward; TFLOP/s and shares of the limit count what is seen alone"
    report("attention_gpu", rows, {"precision": "bfloat16", "limit": f"{PEAK} TFLOP/s", "figures": figures})


if __name__ == "__main__":
    main()
