"""Attention that is linear in length: Linformer and random features against exact attention, unfused and fused.

    python bench/linear_gpu.py

Forward, bfloat16, two heads of 64, about 65,536 tokens in a batch whatever their length. `unfused` forms the table, as
Linformer's Table 3 did, which states the time saved against it: the paper's factors stand beside ours.
"""

from __future__ import annotations

import torch
from gpu import milliseconds, report

from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.kernels.linformer import LinformerKernel, RowProjection
from qkv.parts.attention.kernels.random_features import PositiveFeatures, RandomFeatureKernel
from qkv.parts.attention.visibility import Causal, Mask, Tokens

HEADS, WIDTH, TOKENS = 2, 64, 65_536
LENGTHS = (512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536)
PROJECTED = (128, 256, 512, 1024, 2048)
FEATURES = 256
LONG = (65_536, 131_072, 262_144)
# Time saved by length and k, as published. [wang2020 tab.3]
PUBLISHED = {
    512: (1.5, 1.3),
    1024: (1.7, 1.6, 1.3),
    2048: (2.6, 2.4, 2.1, 1.3),
    4096: (3.4, 3.2, 2.8, 2.2, 1.3),
    8192: (5.5, 5.0, 4.4, 3.5, 2.1),
    16_384: (8.6, 7.8, 7.0, 5.6, 3.3),
    32_768: (13, 12, 11, 8.8, 5.0),
    65_536: (20, 18, 16, 14, 7.9),
}


def inputs(length: int) -> list[torch.Tensor]:
    shape = (max(1, TOKENS // length), length, HEADS, WIDTH)
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(3)]


@torch.no_grad()
def main() -> None:
    rows = []
    for length in LENGTHS:
        qkv = inputs(length)
        unfused = milliseconds(lambda qkv=qkv: exact(*qkv), budget=30, at_least=3)
        dense = milliseconds(lambda qkv=qkv: fused(*qkv), budget=30, at_least=3)
        for place, published in enumerate(PUBLISHED[length]):
            tokens = PROJECTED[place]
            kernel = LinformerKernel(RowProjection(length, tokens), RowProjection(length, tokens)).to("cuda")
            mine = milliseconds(lambda qkv=qkv, kernel=kernel: kernel(*qkv), budget=20, at_least=3)
            rows.append(
                {
                    "kernel": f"Linformer, k {tokens}",
                    "tokens": length,
                    "ms": round(mine, 3),
                    "against unfused": f"{unfused / mine:.1f}x",
                    "published": f"{published}x",
                    "against fused": f"{dense / mine:.2f}x",
                }
            )
    for length in (*LENGTHS[3:], *LONG[1:]):
        qkv = inputs(length)
        mask = Mask(Causal(), Tokens(length), Tokens(length), "cuda")
        kernel = RandomFeatureKernel(PositiveFeatures(FEATURES, WIDTH)).to("cuda")
        mine = milliseconds(lambda qkv=qkv, kernel=kernel, mask=mask: kernel(*qkv, mask), budget=30, at_least=3)
        dense = milliseconds(lambda qkv=qkv, mask=mask: fused(*qkv, mask), budget=30, at_least=3)
        rows.append(
            {
                "kernel": f"positive features, {FEATURES}, look-ahead",
                "tokens": length,
                "ms": round(mine, 3),
                "against unfused": "",
                "published": "",
                "against fused": f"{dense / mine:.2f}x",
            }
        )
    report("linear_gpu", rows, {"precision": "bfloat16", "tokens of a batch": TOKENS, "heads": f"{HEADS} of {WIDTH}"})


if __name__ == "__main__":
    main()
