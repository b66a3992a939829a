"""What the benchmarks on a GPU share: times between events, medians, the machine, a JSON file."""

from __future__ import annotations

import json
import math
import platform
import re
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from qkv.errors import QkvError
from qkv.files import write_json

RESULTS = Path(__file__).parent / "results"


PEERS = ("transformers", "timm", "sentence-transformers")


def milliseconds(
    call: Callable[[], object], *, budget: float = 300.0, at_least: int = 5, at_most: int = 50, warm: int = 3
) -> float:
    """The median time of a call, with the L2 cache emptied before each, for about `budget` milliseconds of calls.

    Calls are queued one behind the other, as a training loop does it: what a call costs the host counts where the
    device would have to wait for it.
    """
    for _ in range(warm):
        call()
    cold = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    count = max(at_least, min(at_most, int(budget / max(start.elapsed_time(end), 1e-3))))
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
    for before, after in events:
        cold.zero_()
        before.record()
        call()
        after.record()
    torch.cuda.synchronize()
    return statistics.median(before.elapsed_time(after) for before, after in events)


# What a program on the GPU is for, by its name; the first that fits.
KINDS = {
    "whole steps of decoding": r"^step$",
    "attention": r"flash|sdpa|fmha|attend",
    "matrix products": r"nvjet|gemm|cutlass|splitk|cublas|norm_map|map_add|activated_map|times_slope|product",
    "loss": r"entropy|nll|log_softmax",
    "norms": r"norm",
    "activations": r"gelu|silu|relu|activate",
    "optimizer": r"adam|multi_tensor|foreach|muon|lion",
    "copies": r"copy|memcpy|memset|cat|gather|fill",
}


def where_time_goes(call: Callable[[], object]) -> str:
    """Of one call: the share of its time that each kind of program runs on the GPU, and that none runs."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as watched:
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
    ran = [
        (event.name, event.time_range.start / 1e3, event.time_range.end / 1e3)
        for event in watched.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation  # which spans programs
    ]
    return shares_of_kinds(one_after_the_other(ran), start.elapsed_time(end))


def one_after_the_other(programs: Iterable[tuple[str, float, float]]) -> list[tuple[str, float]]:
    """Of programs and from when to when they ran: what each took.

    One that begins while others run waits for them at first, so it counts from the end of all that began before it.
    """
    told, until = [], -math.inf
    for name, start, end in sorted(programs, key=lambda each: each[1:]):
        told.append((name, max(0.0, end - max(start, until))))
        until = max(until, end)
    return told


def shares_of_kinds(programs: Iterable[tuple[str, float]], whole: float) -> str:
    """Of programs and their milliseconds, in a call that takes `whole`."""
    spent: dict[str, float] = {}
    for name, time in programs:
        kinds = (kind for kind, fits in KINDS.items() if re.search(fits, name, re.IGNORECASE))
        kind = next(kinds, "others")
        spent[kind] = spent.get(kind, 0.0) + time
    most_first = sorted(spent.items(), key=lambda each: -each[1])
    idle = max(0.0, whole - sum(spent.values()))
    told = [f"{kind} {time / whole:.0%}" for kind, time in [*most_first, ("none", idle)] if time > whole / 200]
    return ", ".join(told)


def machine() -> dict[str, Any]:
    if not torch.cuda.is_available():
        raise QkvError("This benchmark needs a GPU: torch sees none.")
    import triton

    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        **{peer: found for peer in PEERS if (found := version_of(peer))},
    }


def version_of(package: str) -> str | None:
    """The version of a package that may not be here."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@dataclass(frozen=True)
class Limits:
    """What the machine can do at the most, measured."""

    bytes: float  # a second, read and written by a copy
    flops: float  # a second, of a product of two matrices of 8192² numbers in bfloat16

    def seconds(self, *, bytes: float = 0.0, flops: float = 0.0) -> float:
        """The least time to move so much and to compute so much, both at once."""
        return max(bytes / self.bytes, flops / self.flops)


@cache
def limits() -> Limits:
    """Of this GPU, in well under a second."""
    source = torch.empty(2**31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copied = 2 * source.numel() / milliseconds(lambda: target.copy_(source)) * 1e3
    first, second = (torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    return Limits(copied, 2 * 8192**3 / milliseconds(lambda: first @ second) * 1e3)


def report(name: str, rows: list[dict[str, Any]], remarks: Mapping[str, Any]) -> None:
    """Print the rows and keep them as JSON."""
    RESULTS.mkdir(exist_ok=True)
    write_json(RESULTS / f"{name}.json", {"machine": machine(), **remarks, "rows": rows})
    print(json.dumps(machine()))
    for row in rows:
        print(" | ".join(f"{column} {value}" for column, value in row.items()))
