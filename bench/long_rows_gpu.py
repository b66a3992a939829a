"""What long rows cost: blocks that are computed once more on the way back, and attention of ranks that share a row.

    python bench/long_rows_gpu.py

First, GPT-2 blocks (width 768, 12 heads) on one row of 16,384 tokens in bfloat16, with all they make kept for the way
back or with their input alone. `kept`: what the way forward leaves for the way back; `at the most`: the peak of a whole
step; both without weights, gradients and input.

Second, attention alone under a look-ahead mask, forward and back, as each of several ranks has it: its own queries, all
keys and values; one rank after the other on the same GPU. `of an even share`: against the time of the whole row,
divided by the ranks. The slowest rank against the mean says how long the others would wait for it. Consecutive
stretches are there to compare.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import torch
from gpu import milliseconds, report
from torch import Tensor

from qkv.parts.attention.attention import Attention
from qkv.parts.attention.stretches import Stretches
from qkv.parts.attention.visibility import Causal, Mask, Tokens
from qkv.parts.block import Block
from qkv.parts.context import Context
from qkv.parts.feedforward import MLP
from qkv.parts.norm import LayerNorm
from qkv.parts.residual import PreNorm
from qkv.parts.stack import Stack
from qkv.train.parallel.recompute import recompute_blocks
from qkv.train.parallel.share_of_row import ShareOfRow

SMALL = "--small" in sys.argv  # to try the script where there is no GPU
DEVICE, NUMBERS = ("cpu", torch.float32) if SMALL else ("cuda", torch.bfloat16)
WIDTH, HEADS, LAYERS, TOKENS, RANKS = (
    (64, 2, (2, 4), 256, (2, 4)) if SMALL else (768, 12, (4, 8, 12), 16_384, (2, 4, 8))
)


def stack_of(layers: int) -> Stack:
    def block() -> Block:
        attention = Attention(WIDTH, HEADS, visibility=Causal())
        feed_forward = PreNorm(LayerNorm(WIDTH), MLP(WIDTH, 4 * WIDTH))
        return Block(attention=PreNorm(LayerNorm(WIDTH), attention), feed_forward=feed_forward)

    return Stack([block() for _ in range(layers)], LayerNorm(WIDTH)).to(DEVICE, NUMBERS)


def memory_and_time(stack: Stack, *, recompute: bool) -> tuple[float, float, float]:
    """(MiB kept for the way back, MiB at the most, milliseconds) of forward and backward."""
    x = torch.randn(1, TOKENS, WIDTH, device=DEVICE, dtype=NUMBERS, requires_grad=True)
    inputs = [x, *stack.parameters()]
    pull = torch.randn_like(x)

    def forward() -> Tensor:
        y: Tensor = stack(x, Context(tokens=Tokens(TOKENS)))
        return y

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(forward(), inputs, pull)

    with recompute_blocks(stack) if recompute else nullcontext():
        step()
        if SMALL:
            return 1.0, 1.0, 1.0
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        y = forward()
        kept = torch.cuda.memory_allocated() - before
        gradients = torch.autograd.grad(y, inputs, pull)
        most = torch.cuda.max_memory_allocated() - before - sum(each.nbytes for each in gradients)
        del y, gradients
        return kept / 2**20, most / 2**20, milliseconds(step, at_least=3)


def attention_time(tokens: Tokens) -> float:
    """Milliseconds of attention from these tokens to the whole row, forward and back."""
    attention = Attention(WIDTH, HEADS, visibility=Causal()).to(DEVICE, NUMBERS)
    shape = (1, HEADS, TOKENS, WIDTH // HEADS)
    k, v = (torch.randn(shape, device=DEVICE, dtype=NUMBERS, requires_grad=True) for _ in range(2))
    q = torch.randn(*shape[:2], tokens.size, shape[3], device=DEVICE, dtype=NUMBERS, requires_grad=True)
    pull = torch.randn(1, tokens.size, WIDTH, device=DEVICE, dtype=NUMBERS)
    mask, ctx = Mask(Causal(), tokens, Tokens(TOKENS), torch.device(DEVICE)), Context(tokens=tokens)

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(attention.attend(q, k, v, mask, None, ctx), (q, k, v), pull)

    step()
    return 1.0 if SMALL else milliseconds(step)


def shares(ranks: int, whole: float) -> dict[str, Any]:
    each = TOKENS // (2 * ranks)
    paired = [Stretches.of(ShareOfRow(rank, ranks).starts(TOKENS), each, TOKENS) for rank in range(ranks)]
    consecutive = [Stretches.of((2 * rank * each,), 2 * each, TOKENS) for rank in range(ranks)]
    found: dict[str, Any] = {"ranks": ranks}
    for name, tokens in (("paired", paired), ("consecutive", consecutive)):
        times = [attention_time(each) for each in tokens]
        found[f"{name}, slowest rank ms"] = round(max(times), 2)
        found[f"{name}, of an even share"] = f"{max(times) * ranks / whole:.2f}"
        found[f"{name}, slowest against the mean"] = f"{max(times) * ranks / sum(times):.2f}"
    return found


def main() -> None:
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    for layers in LAYERS:
        stack = stack_of(layers)
        usual, anew = (memory_and_time(stack, recompute=recompute) for recompute in (False, True))
        rows.append(
            {
                "layers": layers,
                "ordinary, kept MiB": round(usual[0]),
                "computed once more, kept MiB": round(anew[0]),
                "ordinary, at the most MiB": round(usual[1]),
                "computed once more, at the most MiB": round(anew[1]),
                "ordinary ms": round(usual[2], 1),
                "computed once more ms": round(anew[2], 1),
                "time against ordinary": f"{anew[2] / usual[2]:.2f}",
            }
        )
    whole = attention_time(Tokens(TOKENS))
    rows += [shares(ranks, whole) for ranks in RANKS]
    remarks = {"tokens": f"{TOKENS:,}", "attention of the whole row, ms": round(whole, 2)}
    if SMALL:
        print(*rows, remarks, sep="\n")
    else:
        report("long_rows_gpu", rows, remarks)


if __name__ == "__main__":
    main()
