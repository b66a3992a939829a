"""Hashed attention against dense attention and the reference library's Reformer, by length and rounds.

    python bench/lsh_gpu.py

One row under a look-ahead mask, 8 heads of 64, in bfloat16, forward and backward: the attention alone (ours makes its
keys of the queries, hashes and sorts; dense attention is the fastest of torch's two fused kernels and our own flash),
and a layer of width 512 with its projections, beside the reference's `LSHSelfAttention`, which has no projection of
what it answers. Then what the stages of ours take. Short rows of few rounds are over before a slow host has launched
their programs, so each is also timed as one recorded launch, as `record=True` trains: ours and dense, and the
reference where it lets itself be recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from gpu import milliseconds, report
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

from qkv.parts.attention.attention import Attention
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.flash import flash
from qkv.parts.attention.kernels.lsh import LSHKernel, recommended_buckets
from qkv.parts.attention.shared import SharedAttention
from qkv.parts.attention.visibility import Causal, Mask, Tokens
from qkv.parts.context import Context
from qkv.parts.recording import captured

SMALL = "--small" in sys.argv  # to try the script where there is no GPU
DEVICE, NUMBERS = ("cpu", torch.float32) if SMALL else ("cuda", torch.bfloat16)
WIDTH, HEADS, CHUNK = 512, 8, 64
LENGTHS = (128, 256) if SMALL else (1024, 2048, 4096, 8192, 16_384, 32_768, 65_536)
ROUNDS = (1, 2) if SMALL else (1, 2, 4, 8)
STAGES = ((256, 2),) if SMALL else ((16_384, 4), (65_536, 4))  # tokens, rounds

Both = tuple[float, float]  # milliseconds forward, and forward and backward
Clock = Callable[[Callable[[], tuple[Tensor, ...]]], float]


class Times(NamedTuple):
    plain: Both
    recorded: Both


def timed(call: Callable[[], object]) -> float:
    if SMALL:
        call()
        return 1.0
    return milliseconds(call, budget=30, at_least=4, at_most=20)


def both_ways(call: Callable[[], Tensor], inputs: Sequence[Tensor], record: Clock | None = None) -> Times:
    record = record or as_record

    def ahead() -> tuple[Tensor, ...]:
        return (call(),)

    def there_and_back() -> tuple[Tensor, ...]:
        return torch.autograd.grad(call(), inputs, pull)

    with torch.no_grad():
        forward = timed(ahead)
        pull = torch.randn_like(call())
        recorded = record(ahead)
    for each in inputs:
        each.requires_grad_()
    return Times((forward, timed(there_and_back)), (recorded, record(there_and_back)))


def as_record(call: Callable[[], tuple[Tensor, ...]]) -> float:
    return timed(captured(call, torch.device(DEVICE)))


def as_record_if_it_can(call: Callable[[], tuple[Tensor, ...]]) -> float:
    try:
        return as_record(call)
    except RuntimeError as error:  # something in it waits for the device
        print(f"not recorded: {str(error).splitlines()[0]}", flush=True)
        return float("inf")


def least(of: Sequence[Both]) -> Both:
    return min(forward for forward, _ in of), min(both for _, both in of)


def best(times: dict[str, Times]) -> Times:
    return Times(least([each.plain for each in times.values()]), least([each.recorded for each in times.values()]))


def sdpa(backend: SDPBackend) -> Any:
    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any, *_: Any, scale: float | None = None, **__: Any) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)

    return attend


DENSE = {"cuDNN": sdpa(SDPBackend.CUDNN_ATTENTION), "FlashAttention-2": sdpa(SDPBackend.FLASH_ATTENTION)}
DENSE = {"exact": exact} if SMALL else DENSE | {"flash": flash}


def heads(length: int) -> Tensor:
    """Tokens as a projection leaves them: the heads of a token side by side. [1 h n d]"""
    return torch.randn(1, length, HEADS, WIDTH // HEADS, device=DEVICE, dtype=NUMBERS).transpose(1, 2)


def attention(length: int) -> tuple[Times, dict[int, Times]]:
    """(dense, ours by rounds): the attention alone."""
    mask, dense = Mask(Causal(), Tokens(length), Tokens(length), DEVICE), {}
    q, k, v = (heads(length) for _ in range(3))
    for name, kernel in DENSE.items():
        dense[name] = both_ways(lambda kernel=kernel: kernel(q, k, v, mask), (q, k, v))
    ours = {}
    for rounds in ROUNDS:
        kernel = LSHKernel(chunk=CHUNK, rounds=rounds)
        ours[rounds] = both_ways(lambda kernel=kernel: kernel(q, None, v, mask, scale=1.0), (q, v))
    return best(dense), ours


def layer(length: int) -> tuple[Times, dict[int, Times], dict[int, Times]]:
    """(dense, ours by rounds, the reference's by rounds): with projections."""
    context = Context(tokens=Tokens(length))
    x = torch.randn(1, length, WIDTH, device=DEVICE, dtype=NUMBERS)
    dense, ours, theirs = {}, {}, {}

    def of(made: torch.nn.Module, call: Callable[[Any], Tensor], record: Clock | None = None) -> Times:
        made = made.to(DEVICE, NUMBERS)
        return both_ways(lambda: call(made), (x, *made.parameters()), record)

    for name, kernel in DENSE.items():
        made = Attention(WIDTH, HEADS, visibility=Causal(), bias=False, kernel=kernel)
        dense[name] = of(made, lambda made: made(x, context))
    for rounds in ROUNDS:
        mine = LSHKernel(chunk=CHUNK, rounds=rounds)
        made = SharedAttention(WIDTH, HEADS, visibility=Causal(), bias=False, kernel=mine)
        ours[rounds] = of(made, lambda made: made(x, context))
        factors = recommended_buckets(length, CHUNK)
        config = ReformerConfig(
            hidden_size=WIDTH, num_attention_heads=HEADS, attention_head_size=WIDTH // HEADS, num_hashes=rounds,
            lsh_attn_chunk_length=CHUNK, num_buckets=factors[0] if len(factors) == 1 else list(factors),
            is_decoder=True, lsh_attention_probs_dropout_prob=0.0, attn_layers=["lsh"],
        )  # fmt: skip
        peer = LSHSelfAttention(config, layer_idx=0)
        theirs[rounds] = of(
            peer, lambda made, rounds=rounds: made(x, num_hashes=rounds).hidden_states, as_record_if_it_can
        )
    return best(dense), ours, theirs


def stages(length: int, rounds: int) -> str:
    """What the steps of one call take, each by itself."""
    from qkv.parts.attention.kernels import lsh_triton

    q, v = heads(length), heads(length)
    factors, cut = recommended_buckets(length, CHUNK), lsh_triton.Chunks(CHUNK, 1, 0, True, 1.0)
    kernel = LSHKernel(chunk=CHUNK, rounds=rounds)
    rotations = kernel._rotations(q, factors)
    order = lsh_triton.sorted_by_bucket(lsh_triton.buckets(q, rotations, factors, None), length)
    each, sums = lsh_triton.attend_by_rounds(q, None, v, order, None, cut)
    o, log_sum = lsh_triton.combine(each, sums)
    pull = torch.randn_like(o)
    hash_alone = timed(lambda: lsh_triton.buckets(q, rotations, factors, None))
    steps = {
        "rotations": timed(lambda: kernel._rotations(q, factors)),
        "hashing": hash_alone,
        "sorting": timed(
            lambda: lsh_triton.sorted_by_bucket(lsh_triton.buckets(q, rotations, factors, None), length)
        ) - hash_alone,
        "attending": timed(lambda: lsh_triton.attend_by_rounds(q, None, v, order, None, cut)),
        "joining rounds": timed(lambda: lsh_triton.combine(each, sums)),
        "the way back": timed(lambda: lsh_triton.go_back(q, None, v, order, o, log_sum, None, cut, pull)),
    }  # fmt: skip
    return ", ".join(f"{name} {time:.3f}" for name, time in steps.items())


def row(part: str, length: int, rounds: int, mine: Times, full: Times, theirs: Times | None) -> dict[str, Any]:
    def ms(times: Both | None) -> str:
        return "" if times is None else f"{times[0]:.3f} / {times[1]:.3f}"

    def ratio(times: Both | None, own: Both) -> str:
        return "" if times is None else f"{times[0] / own[0]:.2f} / {times[1] / own[1]:.2f}"

    peer = None if theirs is None else theirs.plain
    return {
        "part": part,
        "tokens": length,
        "rounds": rounds,
        "ours ms": ms(mine.plain),
        "dense ms": ms(full.plain),
        "reference Reformer ms": ms(peer),
        "times dense": ratio(full.plain, mine.plain),
        "times the reference": ratio(peer, mine.plain),
        "ours recorded ms": ms(mine.recorded),
        "recorded, times dense": ratio(full.recorded, mine.recorded),
        # Recorded or plain, whichever is the faster.
        "recorded, times the reference": ratio(None if theirs is None else least(theirs), mine.recorded),
    }


def main() -> None:
    torch.manual_seed(0)
    remarks = {"precision": "bfloat16", "figures": "forward / forward and backward"}
    if not SMALL:
        for length, rounds in STAGES:
            remarks[f"stages at {length:,} tokens and {rounds} rounds, ms"] = stages(length, rounds)
            print(length, rounds, remarks[f"stages at {length:,} tokens and {rounds} rounds, ms"], flush=True)
    rows = []
    for length in LENGTHS:
        dense, ours = attention(length)
        rows += [row("attention", length, rounds, ours[rounds], dense, None) for rounds in ROUNDS]
        dense, ours, theirs = layer(length)
        rows += [row("layer", length, rounds, ours[rounds], dense, theirs[rounds]) for rounds in ROUNDS]
        torch.cuda.empty_cache()
    if SMALL:
        print(*rows, sep="\n")
    else:
        report("lsh_gpu", rows, remarks)


if __name__ == "__main__":
    main()
