"""Attention that is linear in length: random features and Linformer against dense attention, fused and unfused.

    python bench/linear_gpu.py

Two questions, in bfloat16. (1) One row of 8 heads of 64 from 4,096 to 262,144 tokens, forward and backward, against the
faster of torch's two dense kernels: how does time grow with length, and how far is it from what the chip could do? (2)
Linformer's Table 3: a whole layer (768 wide, 12 heads) forward, against one that forms its tables of weights, as the
paper's did, and against one that does not; time and memory saved. [wang2020 tab.3]
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from gpu import milliseconds, report
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from qkv.parts.attention.attention import Attention
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.kernels.linformer import LinformerKernel, RowProjection
from qkv.parts.attention.kernels.prefix_sums import CHUNK
from qkv.parts.attention.kernels.random_features import PositiveFeatures, RandomFeatureKernel, WaveFeatures
from qkv.parts.attention.visibility import Causal, Mask, Tokens
from qkv.parts.context import Context

SMALL = "--small" in sys.argv  # to try the script where there is no GPU
DEVICE, NUMBERS = ("cpu", torch.float32) if SMALL else ("cuda", torch.bfloat16)
HEADS, WIDTH, FEATURES, PROJECTED = 8, 64, 256, 256
LENGTHS = (512, 1024) if SMALL else (4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144)
FIT_FROM = 512 if SMALL else 32_768  # shorter rows leave most of the chip idle
MODEL, MODEL_HEADS, BATCH, TABLES = 768, 12, 1024 if SMALL else 65_536, 80e9
# By length, for k = 128, 256, 512, 1024, 2048, as published. [wang2020 tab.3]
TIME_SAVED = {
    512: (1.5, 1.3),
    1024: (1.7, 1.6, 1.3),
    2048: (2.6, 2.4, 2.1, 1.3),
    4096: (3.4, 3.2, 2.8, 2.2, 1.3),
    8192: (5.5, 5.0, 4.4, 3.5, 2.1),
    16_384: (8.6, 7.8, 7.0, 5.6, 3.3),
    32_768: (13, 12, 11, 8.8, 5.0),
    65_536: (20, 18, 16, 14, 7.9),
}
MEMORY_SAVED = {4096: (14, 13, 8.3, 4.3, 2.3), 65_536: (60, 52, 40, 20, 18)}
COLUMNS = ("case", "tokens", "rows", "forward ms", "both ms", "against dense", "share of the limit",
           "against unfused", "published", "memory against unfused", "published memory")  # fmt: skip

Call = Callable[[], object]


def timed(call: Call) -> float:
    """Milliseconds; calls of more than 50 ms are timed a few times only."""
    if SMALL:
        call()
        return 1.0
    call()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(2):
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return min(times) if min(times) > 50 else milliseconds(call, budget=20, at_least=4, at_most=10)


def both_ways(attend: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> tuple[float, float]:
    """Milliseconds (forward, forward and backward)."""
    with torch.no_grad():
        forward = timed(lambda: attend(*inputs))
        pull = torch.randn_like(attend(*inputs))
    inputs = tuple(x.detach().requires_grad_() for x in inputs)
    return forward, timed(lambda: torch.autograd.grad(attend(*inputs), inputs, pull))


def limits() -> tuple[float, float]:
    """Bytes and operations a millisecond, as this chip copies and multiplies now."""
    if SMALL:
        return 1e9, 1e9
    x = torch.empty(1 << 30, dtype=torch.uint8, device=DEVICE)
    y, a = torch.empty_like(x), torch.randn(8192, 8192, device=DEVICE, dtype=NUMBERS)
    return 2 * len(x) / milliseconds(lambda: y.copy_(x), budget=20), 2 * 8192**3 / milliseconds(
        lambda: a @ a, budget=40
    )


def dense(causal: bool, backend: SDPBackend) -> Callable[..., Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return attend


def dense_times(
    causal: bool, length: int, inputs: tuple[Tensor, ...], best: dict[bool, SDPBackend]
) -> tuple[float, float]:
    """Of the faster kernel; which that is, is asked up to 16,384 tokens."""
    if SMALL:
        return both_ways(dense(causal, SDPBackend.MATH), inputs)
    if length > 16_384:
        try:
            return both_ways(dense(causal, best[causal]), inputs)
        except RuntimeError:  # cuDNN has no plan for every shape
            best[causal] = SDPBackend.FLASH_ATTENTION
            return both_ways(dense(causal, best[causal]), inputs)
    times = {b: both_ways(dense(causal, b), inputs) for b in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)}
    best[causal] = min(times, key=lambda b: times[b][1])
    return min(t[0] for t in times.values()), min(t[1] for t in times.values())


def exponent(points: list[tuple[int, float]]) -> float:
    """p of time ~ length^p: the slope of a straight line through the logarithms."""
    x, y = ([math.log(p[i]) for p in points if p[0] >= FIT_FROM] for i in (0, 1))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


@dataclass(frozen=True)
class Case:
    name: str
    attend: Callable[..., Tensor]
    causal: bool
    operations: float  # of a token, forward
    more_bytes: int = 0  # of a token, besides its queries, keys, values and answers


def cases(length: int) -> list[Case]:
    mask = Mask(Causal(), Tokens(length), Tokens(length), DEVICE)
    positive = RandomFeatureKernel(PositiveFeatures(FEATURES, WIDTH)).to(DEVICE)
    waves = RandomFeatureKernel(WaveFeatures(FEATURES, WIDTH, HEADS)).to(DEVICE)
    shared = RowProjection(length, PROJECTED).to(DEVICE, NUMBERS)
    linformer = LinformerKernel(shared, shared)
    gates = torch.rand(1, HEADS, length, device=DEVICE) * 0.1 + 0.9
    features = 8 * HEADS * FEATURES * WIDTH  # of queries and of keys, sums of values and reading them: 2 a product
    within = 2 * HEADS * CHUNK * (FEATURES + WIDTH)  # the tables of chunks
    return [
        Case(f"Performer, {FEATURES}, look-ahead", lambda *x: positive(*x, mask), True, features + within),
        Case(f"Performer, {FEATURES}", positive, False, features),
        Case(
            f"gated features, {FEATURES}",
            lambda *x: waves.looking_back(*x, gates=gates)[0],
            True,
            features + within,
        ),
        Case(f"Linformer, {PROJECTED}", linformer, False, 8 * HEADS * PROJECTED * WIDTH, 2 * PROJECTED),
    ]


def by_length(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Rows of the first question, and the exponents."""
    copied, multiplied = limits()
    best: dict[bool, SDPBackend] = {}
    times: dict[str, list[tuple[int, float, float]]] = {}
    for length in LENGTHS:
        shape = (1, length, HEADS, WIDTH)
        q, k, v = (torch.randn(shape, device=DEVICE, dtype=NUMBERS).transpose(1, 2) for _ in range(3))
        peers = {causal: dense_times(causal, length, (q, k, v), best) for causal in (True, False)}
        for case in cases(length):
            forward, both = both_ways(case.attend, (q, k, v))
            times.setdefault(case.name, []).append((length, forward, both))
            moved = length * (4 * 2 * HEADS * WIDTH + case.more_bytes)  # once at least
            least = max(moved / copied, length * case.operations / multiplied)
            dense_forward, dense_both = peers[case.causal]
            rows.append(
                row(
                    case.name, length, 1, forward, both, share=f"{least / forward:.0%}",
                    against=f"{dense_forward / forward:.2f}x / {dense_both / both:.2f}x",
                )
            )  # fmt: skip
        for causal, name in ((True, "dense, look-ahead"), (False, "dense")):
            times.setdefault(name, []).append((length, *peers[causal]))
            rows.append(row(name, length, 1, *peers[causal]))
    return {
        name: " / ".join(f"{exponent([(point[0], point[place]) for point in points]):.2f}" for place in (1, 2))
        for name, points in times.items()
    }


def unfused(
    q: Tensor, k: Tensor, v: Tensor, mask: object = None, bias: object = None, *, scale: object = None, **_: object
) -> Tensor:
    """The table of weights formed, all heads at once, or as many as there is room for."""
    at_once = max(1, int(TABLES / (6 * len(q) * q.shape[2] ** 2)))
    parts = []
    for q_part, k_part, v_part in zip(*(x.split(at_once, 1) for x in (q, k, v)), strict=True):
        parts.append(torch.softmax(q_part @ k_part.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v_part)
    return torch.cat(parts, 1)


class Layer(nn.Module):
    """Attention and feed-forward with their residuals, in the order of the paper's RoBERTa."""

    def __init__(self, kernel: Any) -> None:
        super().__init__()
        self.attention = Attention(MODEL, MODEL_HEADS, kernel=kernel)
        self.wide, self.narrow = nn.Linear(MODEL, 4 * MODEL), nn.Linear(4 * MODEL, MODEL)
        self.norms = nn.ModuleList(nn.LayerNorm(MODEL) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](x + self.attention(x, Context(tokens=Tokens(x.shape[1]))))
        return self.norms[1](x + self.narrow(F.gelu(self.wide(x))))


def layer_cost(kernel: Any, x: Tensor) -> tuple[float, float]:
    """Milliseconds forward, and the bytes above those of the weights and the stream."""
    layer = Layer(kernel).to(DEVICE, NUMBERS)
    if SMALL:
        layer(x)
        return 1.0, 1.0
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    layer(x)
    memory = torch.cuda.max_memory_allocated() - before
    return timed(lambda: layer(x)), memory


@torch.no_grad()
def table_three(rows: list[dict[str, Any]]) -> None:
    for length, published in TIME_SAVED.items():
        if length > BATCH:
            continue
        table = 6 * MODEL_HEADS * length**2  # bytes of the tables that live at once
        batch = max(1, min(BATCH // length, int(TABLES / table)))
        whole = batch * table <= TABLES  # all heads of all rows at once
        x = torch.randn(batch, length, MODEL, device=DEVICE, dtype=NUMBERS)
        slow, much = layer_cost(unfused, x)
        if not whole:
            much = float(table * batch)  # what it would take to hold them: the measured layer took heads in turns
        fast, little = layer_cost(fused, x)
        said = "" if whole else ", computed"
        rows.append(row("layer, tables formed", length, batch, slow, memory=f"{much / 1e9:.2f} GB{said}"))
        rows.append(
            row("layer, torch's fused kernel", length, batch, fast, unfused=f"{slow / fast:.1f}x",
                memory=f"{much / little:.1f}x{said}")
        )  # fmt: skip
        for place, factor in enumerate(published):
            shared = RowProjection(length, 128 << place)
            mine, used = layer_cost(LinformerKernel(shared, shared), x)
            rows.append(
                row(
                    f"layer, Linformer k {128 << place}", length, batch, mine, against=f"{fast / mine:.2f}x",
                    unfused=f"{slow / mine:.1f}x", published=f"{factor}x", memory=f"{much / used:.1f}x{said}",
                    published_memory=f"{MEMORY_SAVED[length][place]}x" if length in MEMORY_SAVED else "",
                )
            )  # fmt: skip


def row(
    case: str, tokens: int, rows: int, forward: float, both: float | None = None, *, against: str = "", share: str = "",
    unfused: str = "", published: str = "", memory: str = "", published_memory: str = "",
) -> dict[str, Any]:  # fmt: skip
    timings = (round(forward, 3), "" if both is None else round(both, 3))
    cells = (case, tokens, rows, *timings, against, share, unfused, published, memory, published_memory)
    return dict(zip(COLUMNS, cells, strict=True))


def main() -> None:
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    exponents = by_length(rows)
    table_three(rows)
    if SMALL:
        print(*rows, exponents, sep="\n")
        return
    remarks = {
        "precision": "bfloat16",
        "exponents of time in length, forward / both ways": "; ".join(f"{k} {v}" for k, v in exponents.items()),
        "exponents are fitted from": FIT_FROM,
        "against dense": "the faster of FlashAttention-2 and cuDNN, forward / both ways; a layer: with torch's choice",
        "share of the limit": "the least time to move q, k, v and o once, or to multiply, over the forward time",
        "unfused": "weights formed in bfloat16 by plain products and a softmax",
    }
    report("linear_gpu", rows, remarks)


if __name__ == "__main__":
    main()
