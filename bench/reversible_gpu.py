"""The reversible stack against the ordinary one: memory by depth, time, and whether the gradients are the same.

    python bench/reversible_gpu.py

Blocks as Reformer has them (width 512, 8 heads of hashed attention in 2 rounds, a feed-forward of 2048) on one row of
16,384 tokens in bfloat16. `kept`: what the way forward leaves for the way back. `at the most`: the peak of a whole
step. Both without weights, gradients and input. The ordinary stack wires the same blocks with residual sums.

Gradients are compared with plain autograd on the same two streams at the greatest depth: exact attention in float32,
beside how far float32 is from float64, and hashed attention in float64, where no rounding moves a token to another
bucket.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from gpu import milliseconds, report
from torch import Tensor, nn

from qkv.parts.attention.attention import Attention
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.lsh import LSHKernel
from qkv.parts.attention.shared import SharedAttention
from qkv.parts.attention.visibility import Causal, Tokens
from qkv.parts.block import Block
from qkv.parts.context import Context
from qkv.parts.feedforward import MLP
from qkv.parts.norm import LayerNorm
from qkv.parts.residual import PreNorm
from qkv.parts.reversible import ReversibleStack, in_two_streams
from qkv.parts.stack import Stack

SMALL = "--small" in sys.argv  # to try the script where there is no GPU
DEVICE, NUMBERS = ("cpu", torch.float32) if SMALL else ("cuda", torch.bfloat16)
WIDTH, HEADS, LAYERS, TOKENS, COMPARED = (
    (64, 2, (2, 4), 256, 256) if SMALL else (512, 8, (2, 4, 8, 12, 24), 16_384, 2048)
)


def blocks(layers: int, hashed: bool = True) -> list[Block]:
    def attention() -> nn.Module:
        if hashed:
            return SharedAttention(
                WIDTH, HEADS, visibility=Causal(), bias=False, kernel=LSHKernel(chunk=64, rounds=2, seed=1)
            )
        return Attention(WIDTH, HEADS, visibility=Causal(), kernel=exact)  # others compute float32 in parts of TF32

    def block() -> Block:
        feed_forward = PreNorm(LayerNorm(WIDTH), MLP(WIDTH, 4 * WIDTH))
        return Block(attention=PreNorm(LayerNorm(WIDTH), attention()), feed_forward=feed_forward)

    return [block() for _ in range(layers)]


def memory_and_time(stack: nn.Module) -> tuple[float, float, float]:
    """(MiB kept for the way back, MiB at the most, milliseconds) of forward and backward."""
    stack = stack.to(DEVICE, NUMBERS)
    x = torch.randn(1, TOKENS, WIDTH, device=DEVICE, dtype=NUMBERS, requires_grad=True)
    context = Context(tokens=Tokens(TOKENS))
    inputs = [x, *stack.parameters()]
    with torch.no_grad():
        pull = torch.randn_like(stack(x, context))

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(stack(x, context), inputs, pull)

    step()
    if SMALL:
        return 1.0, 1.0, 1.0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y = stack(x, context)
    kept = torch.cuda.memory_allocated() - before
    gradients = torch.autograd.grad(y, inputs, pull)
    most = torch.cuda.max_memory_allocated() - before - sum(each.nbytes for each in gradients)
    del y, gradients
    return kept / 2**20, most / 2**20, milliseconds(step, budget=100, at_least=3)


def gradients(stack: ReversibleStack, x: Tensor, pull: Tensor, *, plainly: bool) -> list[Tensor]:
    """Of the input and all parameters, by the reversible stack or by plain autograd on the same two streams."""
    context, inputs = Context(tokens=Tokens(COMPARED)), [x, *stack.parameters()]
    if plainly:
        y = stack.norm(torch.cat(in_two_streams(stack.blocks, x, x, context), -1), context)
    else:
        y = stack(x, context)
    return [each.double() for each in torch.autograd.grad(y, inputs, pull)]


def apart(found: list[Tensor], expected: list[Tensor]) -> str:
    """The largest difference of all tensors' gradients, each relative to the largest gradient of its tensor."""
    return f"{max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, expected, strict=True)):.1e}"


def differences(layers: int) -> dict[str, str]:
    stack = ReversibleStack(blocks(layers, hashed=False), LayerNorm(2 * WIDTH)).to(DEVICE)
    x = torch.randn(1, COMPARED, WIDTH, device=DEVICE, requires_grad=True)
    pull = torch.randn(1, COMPARED, 2 * WIDTH, device=DEVICE)
    mine, theirs = (gradients(stack, x, pull, plainly=plainly) for plainly in (False, True))
    stack, x, pull = stack.double(), x.detach().double().requires_grad_(), pull.double()
    exactly = gradients(stack, x, pull, plainly=True)
    wide = gradients(stack, x, pull, plainly=False)
    stack = ReversibleStack(blocks(layers), LayerNorm(2 * WIDTH)).to(DEVICE).double()
    hashed = [gradients(stack, x, pull, plainly=plainly) for plainly in (False, True)]
    return {
        "largest difference of gradients, float32": apart(mine, theirs),
        "of either from float64": f"{apart(mine, exactly)} and, ordinary, {apart(theirs, exactly)}",
        "float64": apart(wide, exactly),
        "hashed, float64": apart(*hashed),
    }


def main() -> None:
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    for layers in LAYERS:
        flat = memory_and_time(ReversibleStack(blocks(layers), LayerNorm(2 * WIDTH)))
        usual = memory_and_time(Stack(blocks(layers), LayerNorm(WIDTH)))
        rows.append(
            {
                "layers": layers,
                "reversible, kept MiB": round(flat[0]),
                "ordinary, kept MiB": round(usual[0]),
                "reversible, at the most MiB": round(flat[1]),
                "ordinary, at the most MiB": round(usual[1]),
                "reversible ms": round(flat[2], 1),
                "ordinary ms": round(usual[2], 1),
                "time against ordinary": f"{flat[2] / usual[2]:.2f}",
            }
        )
    remarks = {
        "tokens": f"{TOKENS:,}",
        **differences(LAYERS[-1]),
    }
    if SMALL:
        print(*rows, remarks, sep="\n")
    else:
        report("reversible_gpu", rows, remarks)


if __name__ == "__main__":
    main()
