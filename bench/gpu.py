"""What the benchmarks on a GPU share: times between events, medians, the machine, a JSON file."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from qkv.errors import QkvError
from qkv.files import write_json

RESULTS = Path(__file__).parent / "results"


def milliseconds(call: Callable[[], object], *, budget: float = 300.0, at_least: int = 5, at_most: int = 50) -> float:
    """The median time of a call, with the L2 cache emptied before each, for about `budget` milliseconds of calls.

    Calls are queued one behind the other, as a training loop does it: what a call costs the host counts where the
    device would have to wait for it.
    """
    for _ in range(3):
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
    }


def report(name: str, rows: list[dict[str, Any]], remarks: Mapping[str, Any]) -> None:
    """Print the rows and keep them as JSON."""
    RESULTS.mkdir(exist_ok=True)
    write_json(RESULTS / f"{name}.json", {"machine": machine(), **remarks, "rows": rows})
    print(json.dumps(machine()))
    for row in rows:
        print(" | ".join(f"{column} {value}" for column, value in row.items()))
