"""Measuring what a device reaches: `qkv cost --measure`. On one H200 it takes less than a minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.train.cost.backends import preferred
from qkv.train.cost.measure_attention import measure_attentions
from qkv.train.cost.measure_host import measure_host
from qkv.train.cost.profile import DeviceProfile, device_name

V = 50257  # a vocabulary of which no row begins where fast kernels want it to


@dataclass(frozen=True)
class Extent:
    """How much is measured."""

    tokens: tuple[int, ...]  # rows of products
    widths: tuple[int, ...]  # their columns and terms
    coarse: tuple[int, ...]  # the same where all is slower
    batched: tuple[int, ...]  # sides of products in batches
    traffic: tuple[int, ...]  # bytes
    lengths: tuple[int, ...]  # of rows under attention
    most_flops: float  # of one product
    most_bytes: float
    spend: float  # seconds for one figure, at most about
    hold: float = 0.0  # seconds for which a product is repeated, until a GPU has come to its limit of power


ON_GPU = Extent(
    tokens=(256, 1024, 4096, 16384, 65536),
    widths=(256, 512, 768, 1024, 2048, 4096, 32768),
    coarse=(256, 1024, 4096, 32768),
    batched=(64, 256, 1024),
    traffic=(1 << 16, 1 << 20, 1 << 23, 1 << 26, 1 << 28, 1 << 30),
    lengths=(128, 512, 2048, 8192),
    most_flops=2.5e12,
    most_bytes=4e9,
    spend=0.002,
    hold=2.0,
)
ON_CPU = Extent(
    tokens=(64, 512, 2048),
    widths=(64, 256, 1024, 4096),
    coarse=(64, 256, 1024, 4096),
    batched=(64, 256),
    traffic=(1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 27),
    lengths=(32, 128, 512),
    most_flops=4e9,
    most_bytes=1e9,
    spend=0.01,
)
TINY = Extent((16, 64), (16, 64), (16, 64), (16, 32), (1 << 10, 1 << 14), (16, 32), 1e8, 1e8, 0.0005)
HELD = {torch.float32: 4096, torch.bfloat16: 8192}  # sides of products that are repeated
BETWEEN = 0.4  # of a product's time that passes over memory take, as in a step of GPT-2


def measure_device(
    place: torch.device, extent: Extent | None = None, say: Callable[[str], None] = lambda text: None
) -> DeviceProfile:
    """Time a device through torch, at the sizes of `extent` or those that suit its kind."""
    chosen = extent or (ON_GPU if place.type == "cuda" else ON_CPU)
    clock = Clock(place, chosen.spend)
    libraries = _held_by_libraries(place)
    say("what the host takes for an operator")
    host = measure_host(place, tiny=extent is TINY)
    say("reading and writing")
    traffic = _traffic(clock, chosen)
    say("matrix products")
    products = tuple(_products(clock, chosen))
    say("attentions")
    attentions = tuple(measure_attentions(clock, chosen))
    return DeviceProfile(
        name=device_name(place),
        kind=place.type,
        torch=torch.__version__,
        memory=_memory(place),
        libraries=libraries,
        launch=clock.seconds(_smallest(place)),
        host=host,
        attention_order=preferred() if place.type == "cuda" else ("cpu", "math"),
        products=products,
        attentions=attentions,
        traffic=traffic,
        generation=torch.cuda.get_device_properties(place).major if place.type == "cuda" else None,
        sustained=_sustained(clock, chosen),
    )


class Clock:
    """The time that a device spends on a call, the less of two means, to four digits."""

    def __init__(self, place: torch.device, spend: float) -> None:
        self.place, self.spend = place, spend

    def seconds(self, call: Callable[[], object]) -> float:
        call()
        once = self._elapsed(call, 1)
        times = max(2, min(50, int(self.spend / max(once, 1e-7))))
        least = min(self._elapsed(call, times) / times for _ in range(2))
        return float(f"{least:.4g}")

    def _elapsed(self, call: Callable[[], object], times: int) -> float:
        if self.place.type != "cuda":
            start = time.perf_counter()
            for _ in range(times):
                call()
            return time.perf_counter() - start
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(2_000_000)  # about a millisecond, in which the host gets ahead: else its time is measured
        first.record()
        for _ in range(times):
            call()
        last.record()
        torch.cuda.synchronize(self.place)
        return first.elapsed_time(last) / 1e3


def _sustained(clock: Clock, extent: Extent) -> dict[str, float]:
    """By precision, how many times longer a large product takes in the long run: all others were timed for moments.

    What is repeated is like a step, where passes over memory come between products, and a GPU has time to cool.
    """
    if not extent.hold:
        return {}
    x = torch.zeros(1 << 28, device=clock.place)
    once = clock.seconds(lambda: x.add_(1.0))
    found = {}
    for dtype, side in HELD.items():
        a, b = (torch.randn(side, side, device=clock.place, dtype=dtype) for _ in range(2))
        torch.cuda.synchronize(clock.place)
        time.sleep(extent.hold)
        moment = clock.seconds(partial(torch.mm, a, b))
        passes = max(1, round(BETWEEN * moment / once))
        until = time.perf_counter() + extent.hold
        while time.perf_counter() < until:
            last = clock._elapsed(partial(_like_a_step, a, b, x, passes), 50) / 50
        found[str(dtype).removeprefix("torch.")] = max(1.0, float(f"{(last - passes * once) / moment:.4g}"))
    return found


def _like_a_step(a: Tensor, b: Tensor, x: Tensor, passes: int) -> None:
    torch.mm(a, b)
    for _ in range(passes):
        x.add_(1.0)


def _memory(place: torch.device) -> int:
    if place.type == "cuda":
        return int(torch.cuda.get_device_properties(place).total_memory)
    import os

    names = os.sysconf_names if hasattr(os, "sysconf_names") else {}
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if "SC_PHYS_PAGES" in names else 0


def _held_by_libraries(place: torch.device) -> int:
    """What remains of products forward and back when all of them are forgotten."""
    if place.type != "cuda":
        return 0
    before = torch.cuda.memory_allocated(place)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(512, 512, device=place, dtype=dtype, requires_grad=True)
        layer = torch.nn.Linear(512, 512, device=place, dtype=dtype)
        layer(x).sum().backward()
        del x, layer
    torch.cuda.synchronize(place)
    return torch.cuda.memory_allocated(place) - before


def _smallest(place: torch.device) -> Callable[[], object]:
    x = torch.zeros(16, device=place)
    return lambda: x.add_(1.0)


def _products(clock: Clock, extent: Extent) -> Iterator[tuple[Any, ...]]:
    store = _Store(clock.place)
    on_gpu = clock.place.type == "cuda"
    for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float32, "float32"))[0 if on_gpu else 1 :]:
        narrow = dtype == torch.bfloat16
        widths = extent.widths if narrow else extent.coarse
        tokens = extent.tokens if narrow else extent.coarse
        most = extent.most_flops if narrow else extent.most_flops / (8 if on_gpu else 1)
        for layout in ("nt", "nn", "tn"):
            for t in tokens:
                for a in widths:
                    for b in widths:
                        m, n, k = (a, b, t) if layout == "tn" else (t, a, b)
                        yield from _one(clock, store, dtype, name, layout, 1, m, n, k, True, most, extent)
            for a in extent.batched:
                for b in extent.batched:
                    for c in extent.batched:
                        batch = max(2, min(512, int(4e10 * (extent.spend / 0.002)) // (2 * a * b * c)))
                        yield from _one(clock, store, dtype, name, layout, batch, a, b, c, True, most, extent)
        if narrow:
            for t in (1024, 4096, 16384):
                for w in (512, 768, 1024, 2048):
                    for layout, m, n, k in (("nt", t, V, w), ("nn", t, w, V), ("tn", V, w, t)):
                        yield from _one(clock, store, dtype, name, layout, 1, m, n, k, False, 2 * most, extent)


def _one(
    clock: Clock, store: _Store, dtype: torch.dtype, name: str, layout: str, batch: int, m: int, n: int, k: int,
    aligned: bool, most: float, extent: Extent,
) -> Iterator[tuple[Any, ...]]:  # fmt: skip
    size = dtype.itemsize * batch * (m * k + k * n + m * n)
    if 2 * batch * m * n * k > most or size > extent.most_bytes:
        return
    a = store.matrix(0, dtype, batch, m, k, layout[0] == "t")
    b = store.matrix(1, dtype, batch, k, n, layout[1] == "t")
    out = store.matrix(2, dtype, batch, m, n, False)
    seconds = clock.seconds(lambda: torch.matmul(a, b, out=out))
    yield name, layout, batch, m, n, k, aligned, seconds


class _Store:
    """Memory that matrices of all sizes are cut from, so that none is made anew."""

    def __init__(self, place: torch.device) -> None:
        self.place = place
        self.flat: dict[tuple[int, torch.dtype], Tensor] = {}

    def matrix(self, number: int, dtype: torch.dtype, batch: int, rows: int, columns: int, transposed: bool) -> Tensor:
        size, key = batch * rows * columns, (number, dtype)
        if key not in self.flat or self.flat[key].numel() < size:
            self.flat[key] = torch.randn(size, device=self.place, dtype=dtype).mul_(0.05)
        shape = (batch, columns, rows) if transposed else (batch, rows, columns)
        made = self.flat[key][:size].view(shape)
        made = made.transpose(1, 2) if transposed else made
        return made[0] if batch == 1 else made


def _traffic(clock: Clock, extent: Extent) -> dict[str, tuple[tuple[float, float], ...]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for size in extent.traffic:
        for kind, moved, call in _moves(clock.place, size):
            found.setdefault(kind, []).append((float(moved), clock.seconds(call)))
    return {kind: tuple(_rising(points)) for kind, points in found.items()}


def _rising(points: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    least = 0.0
    for size, seconds in sorted(points):
        least = max(least, seconds)
        yield size, least


def _moves(place: torch.device, size: int) -> Iterator[tuple[str, int, Callable[[], object]]]:
    """(kind, bytes read and written, call) for about `size` bytes of numbers."""
    width = min(768, max(16, size // 64))
    rows = max(1, size // (4 * width))
    x = torch.randn(rows, width, device=place)
    y, narrow = torch.empty_like(x), x.bfloat16() if place.type == "cuda" else x
    one = x.numel() * 4
    weight, bias = torch.ones(width, device=place), torch.zeros(width, device=place)
    yield "copy", 2 * one, lambda: y.copy_(x)
    yield "pointwise", 3 * one, lambda: torch.add(x, y, out=y)
    yield "widen", one + narrow.numel() * narrow.element_size(), lambda: y.copy_(narrow)
    column, number = x[:, :1].clone(), torch.ones((), device=place)
    yield "broadcast", 4 * one, lambda: (torch.sub(x, column, out=y), torch.mul(x, number, out=y))
    yield "logsumexp", one, lambda: x.logsumexp(-1)
    square = x[: max(1, rows // 64 * 64)].view(-1, min(64, len(x)), width) if rows >= 64 else x[None]
    turned = torch.empty_like(square).transpose(1, 2).contiguous()
    yield "transpose", 2 * square.numel() * 4, lambda: turned.copy_(square.transpose(1, 2))
    yield "norm", 2 * one, lambda: F.layer_norm(x, (width,), weight, bias)
    made, mean, deviation = torch.ops.aten.native_layer_norm(x, [width], weight, bias, 1e-5)
    yield (
        "norm_back",
        3 * one,
        lambda: torch.ops.aten.native_layer_norm_backward(
            made, x, [width], mean, deviation, weight, bias, [True, True, True]
        ),
    )
    yield "softmax", 2 * one, lambda: torch.softmax(x, -1)
    yield "reduce", one, lambda: x.sum(-1)
    yield "reduce_rows", narrow.numel() * narrow.element_size(), lambda: narrow.sum(0)
    if place.type == "cuda":
        yield "dropout", 2 * one + one // 4, lambda: torch.ops.aten.native_dropout(x, 0.1, True)
    ids = torch.randint(0, rows, (rows,), device=place)
    yield "gather", 2 * one, lambda: F.embedding(ids, x)
    yield "scatter", 4 * one, lambda: torch.ops.aten.embedding_dense_backward(x, ids, rows, -1, False)
    numbers = torch.randint(0, 1 << 16, (max(1, size // 8),), device=place)
    yield "sort", 3 * numbers.numel() * 8, lambda: numbers.sort()
    state = [list(torch.zeros(x.numel(), device=place).split(1 << 20)) for _ in range(4)]  # as many tensors
    count = [torch.zeros((), device=place) for _ in state[0]]
    yield "adam", 7 * one, lambda: torch._fused_adamw_(
        state[0], state[1], state[2], state[3], [], count, lr=1e-3, beta1=0.9, beta2=0.99, weight_decay=0.0,
        eps=1e-8, amsgrad=False, maximize=False,
    )  # fmt: skip
