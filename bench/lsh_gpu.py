"""Hashed attention against dense attention and the reference library's Reformer, by length and rounds.

    python bench/lsh_gpu.py

One attention layer of width 512 with 8 heads under a look-ahead mask, projections included, forward and backward, in
bfloat16: ours, the same layer with torch's fastest dense kernel, and the reference's `LSHSelfAttention`.
"""

from __future__ import annotations

from typing import Any

import torch
from gpu import milliseconds, report
from torch import nn
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

from qkv.parts.attention.attention import Attention
from qkv.parts.attention.kernels.lsh import LSHKernel, recommended_buckets
from qkv.parts.attention.shared import SharedAttention
from qkv.parts.attention.visibility import Causal, Tokens
from qkv.parts.context import Context

WIDTH, HEADS, CHUNK, ROUNDS = 512, 8, 64, (1, 2, 4, 8)
LENGTHS = (1024, 4096, 16_384, 65_536)


def both_ways(layer: nn.Module, x: torch.Tensor, call: Any) -> tuple[float, float]:
    """Milliseconds (forward, forward and backward)."""
    with torch.no_grad():
        forward = milliseconds(lambda: call(x), budget=60)
    inputs = (x.requires_grad_(), *layer.parameters())
    return forward, milliseconds(
        lambda: torch.autograd.grad(call(x).sum(), inputs, allow_unused=True), budget=60, at_least=4
    )


def main() -> None:
    torch.manual_seed(0)
    rows = []
    for length in LENGTHS:
        x = torch.randn(1, length, WIDTH, device="cuda", dtype=torch.bfloat16)
        context = Context(tokens=Tokens(length))
        dense = Attention(WIDTH, HEADS, visibility=Causal(), bias=False).to("cuda", torch.bfloat16)
        full = both_ways(dense, x.clone(), lambda x, layer=dense, ctx=context: layer(x, ctx))
        for rounds in ROUNDS:
            kernel = LSHKernel(chunk=CHUNK, rounds=rounds)
            ours = SharedAttention(WIDTH, HEADS, visibility=Causal(), bias=False, kernel=kernel)
            ours = ours.to("cuda", torch.bfloat16)
            mine = both_ways(ours, x.clone(), lambda x, layer=ours, ctx=context: layer(x, ctx))
            factors = recommended_buckets(length, CHUNK)
            config = ReformerConfig(
                hidden_size=WIDTH, num_attention_heads=HEADS, attention_head_size=WIDTH // HEADS, num_hashes=rounds,
                lsh_attn_chunk_length=CHUNK, num_buckets=factors[0] if len(factors) == 1 else list(factors),
                is_decoder=True, lsh_attention_probs_dropout_prob=0.0, attn_layers=["lsh"],
            )  # fmt: skip
            peer = LSHSelfAttention(config, layer_idx=0).to("cuda", torch.bfloat16)
            theirs = both_ways(peer, x.clone(), lambda x, layer=peer, r=rounds: layer(x, num_hashes=r).hidden_states)
            rows.append(
                {
                    "tokens": length,
                    "rounds": rounds,
                    "ours ms": f"{mine[0]:.2f} / {mine[1]:.2f}",
                    "dense ms": f"{full[0]:.2f} / {full[1]:.2f}",
                    "reference Reformer ms": f"{theirs[0]:.2f} / {theirs[1]:.2f}",
                    "against dense": f"{full[0] / mine[0]:.2f}x / {full[1] / mine[1]:.2f}x",
                    "against the reference": f"{theirs[0] / mine[0]:.2f}x / {theirs[1] / mine[1]:.2f}x",
                }
            )
    report("lsh_gpu", rows, {"precision": "bfloat16", "figures": "forward / forward and backward"})


if __name__ == "__main__":
    main()
