"""Does `qkv cost` tell beforehand what steps take? Predictions beside real steps.

    python bench/measure_device_gpu.py && python bench/cost_gpu.py

For each configuration: the step as predicted from shapes and the measured device, then real steps of the same model on
the GPU, as the training loop takes them by default (in a stream, recorded where they can be), the median of their times
and the most memory they held. `cost_gpu_details.json` holds what either is made of, kind by kind, for those who
want to know where a prediction fails.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from gpu import RESULTS, report
from torch import nn

from qkv.api.cost import new_model, typical_step
from qkv.files import write_json
from qkv.train.cost.measure import TINY, measure_device
from qkv.train.cost.prediction import busy_times, cost_of, traced
from qkv.train.cost.profile import DeviceProfile, find_profile, short_name
from qkv.train.cost.step import AlwaysThis
from qkv.train.objectives.expert_losses import with_expert_losses
from qkv.train.optimizers import adamw
from qkv.train.recordable import why_plain
from qkv.train.settings import TrainSettings
from qkv.train.step import Stepper
from qkv.train.streamed import streamed_stacks

GIGA = 2**30
WARM, STEPS = 3, 8
NARROW = "bfloat16"


@dataclass(frozen=True)
class Case:
    family: str
    rows: int
    length: int | None
    precision: str = NARROW
    size: Any = "base"
    attention: str | None = None

    def __str__(self) -> str:
        size = self.size if isinstance(self.size, str) else "own"
        with_attention = f" {self.attention}" if self.attention else ""
        return f"{self.family} {size}{with_attention}, {self.rows} × {self.length or 'pictures'}, {self.precision}"


PLAIN = {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}
GPT = {"vocabulary": 50257, "width": 768, "hidden": 3072, "heads": 12, "layers": 12, **PLAIN}
LLAMA = {"vocabulary": 32000, "width": 1024, "hidden": 2816, "heads": 16, "key_value_heads": 4, "layers": 16}
REFORMER = {
    "vocabulary": 8000, "positions": 16384, "lines": 128, "columns": 128, "line_width": 128, "width": 512,
    "hidden": 2048, "heads": 8, "head_width": 64, "layers": 6, "rounds": 4, "sights": "lsh",
}  # fmt: skip
SWITCH = {
    "vocabulary": 32128, "width": 768, "key_width": 64, "hidden": 2048, "heads": 12, "encoder_layers": 6,
    "decoder_layers": 6, "experts": 8,
}  # fmt: skip
CASES = (
    Case("gpt2", 32, 256),
    Case("gpt2", 16, 1024),
    Case("gpt2", 8, 1024, "float32"),
    Case("gpt2", 2, 128),
    Case("gpt2", 8, 2048, size=GPT),
    Case("gpt2", 16, 1024, size="medium"),
    Case("gpt2", 4, 512, "float32", size="medium"),
    Case("bert", 256, 128),
    Case("bert", 64, 512),
    Case("bert", 16, 512, "float32"),
    Case("t5", 96, 256),
    Case("vit", 256, None, size="base-16"),
    Case("vit", 32, None, "float32", size="base-16"),
    Case("llama", 32, 1024, size=LLAMA),
    Case("transformer", 1024, 64),
    Case("switch", 128, 256, size=SWITCH),
    Case("reformer", 8, 16384, size=REFORMER),
    Case("gpt2", 2, 8192, size=GPT, attention="window:512"),
    Case("gpt2", 8, 8192, size=GPT, attention="performer:256"),
    # Batches so small that the host sets the pace, whose time is harder to tell.
    Case("bert", 64, 128),
    Case("transformer", 64, 64),
    Case("switch", 32, 256, size=SWITCH),
    Case("reformer", 1, 16384, size=REFORMER),
    Case("gpt2", 2, 8192, size=GPT, attention="performer:256"),
)
SMALL_CASES = (
    Case("gpt2", 2, 32, "float32", size={"layers": 1, "vocabulary": 100}),
    Case("vit", 2, None, "float32", size={"layers": 1}),
)


@dataclass
class Measured:
    seconds: float
    host_seconds: float
    peak: int | None
    kernels: dict[str, list[float]] = field(default_factory=dict)  # name -> launches, milliseconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)  # on a CPU, to see that it runs
    small = parser.parse_args().small
    place = torch.device("cpu") if small else torch.device("cuda", 0)
    profile = measure_device(place, TINY) if small else the_profile()
    held = warm_libraries(place)
    rows, details = [], []
    for case in SMALL_CASES if small else CASES:
        try:
            row, detail = both(case, place, profile, held)
        except Exception as error:  # one case that fails is told, and the others are measured
            print(f"{case}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        print(json.dumps(row), flush=True)
        rows.append(row)
        details.append(detail)
        if not small:  # written after every case: what ends early has told all that it knew
            write_json(RESULTS / "cost_gpu_details.json", details)
    if not small:
        right = sum(abs(row["memory error"]) <= 0.10 and abs(row["time error"]) <= 0.15 for row in rows)
        report("cost_gpu", rows, {"within 10% of memory and 15% of time": f"{right} of {len(rows)}"})


def the_profile() -> DeviceProfile:
    """Measured on this very machine where that was done, otherwise the one that comes with qkv."""
    file = RESULTS / f"device_{short_name(torch.cuda.get_device_name())}.json"
    found = DeviceProfile.load(file) if file.exists() else find_profile("cuda")
    return found or measure_device(torch.device("cuda", 0))


def warm_libraries(place: torch.device) -> int:
    """Have matrix products take the memory that they hold for good; how much that is."""
    if place.type != "cuda":
        return 0
    for dtype in (torch.float32, torch.bfloat16):
        layer = nn.Linear(64, 64, device=place, dtype=dtype)
        layer(torch.ones(64, 64, device=place, dtype=dtype)).sum().backward()
        del layer
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def both(case: Case, place: torch.device, profile: DeviceProfile, held: int) -> tuple[dict[str, Any], dict[str, Any]]:
    torch.manual_seed(0)
    gc.collect()
    before = 0
    if place.type == "cuda":
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
    model = built(case, place)
    objective, batch = typical_step(model, case.rows, case.length, None)
    objective = with_expert_losses(model, objective)
    settings = TrainSettings(steps=1, precision=case.precision, device=place.type)  # type: ignore[arg-type]
    start = time.perf_counter()
    trace, counted = traced(model, objective, batch, settings, place=place, profile=profile, optimizer=adamw)
    recorded = why_plain(model, objective, settings, place) is None
    predicted = cost_of(trace, model, counted, "tokens", settings, profile, profile.name, recorded=recorded)
    foreseen = time.perf_counter() - start
    with streamed_stacks(model) if place.type == "cuda" else nullcontext():
        measured = run(model, objective, batch.to(place), settings, place, before - held)
    assert predicted.seconds is not None
    memory = predicted.memory.total
    row = {
        "case": str(case),
        "predicted ms": round(1e3 * predicted.seconds, 2),
        "measured ms": round(1e3 * measured.seconds, 2),
        "time error": round(predicted.seconds / measured.seconds - 1, 3),
        "predicted GiB": round(memory / GIGA, 3),
        "measured GiB": None if measured.peak is None else round(measured.peak / GIGA, 3),
        "memory error": None if measured.peak is None else round(memory / measured.peak - 1, 3),
        "TFLOP": round(predicted.flops / 1e12, 2),
    }
    kinds: Counter[str] = Counter()
    for (phase, kind, name), seconds in busy_times(trace, profile):
        kinds[f"{phase} {kind} {name}"] += 1e3 * seconds  # type: ignore[assignment]
    works = [
        [phase, work.kind, work.name, times, work.flops, work.bytes, list(work.shape)]
        for (phase, work), times in trace.works.items()
        if work.kind != "nothing"
    ]
    detail = {
        **row,
        "device ms": round(1e3 * (predicted.device_seconds or 0), 3),
        "host ms": round(1e3 * (predicted.host_seconds or 0), 3),
        "measured host ms": round(1e3 * measured.host_seconds, 3),
        "seconds to predict": round(foreseen, 2),
        "memory": vars(predicted.memory),
        "predicted kinds": {name: round(value, 4) for name, value in kinds.most_common()},
        "measured kernels": measured.kernels,
        "works": works,
    }
    return row, detail


def built(case: Case, place: torch.device) -> nn.Module:
    """A new model, made on the device where that can be: it takes less long there."""
    given = case.family, case.size, None, case.attention, case.length
    try:
        with torch.device(place):
            return new_model(*given).to(place)
    except RuntimeError:  # numbers drawn by a generator of the host
        return new_model(*given).to(place)


def run(
    model: nn.Module, objective: Any, batch: Any, settings: TrainSettings, place: torch.device, others: int
) -> Measured:
    """Real steps, as the training loop takes them."""
    model.train()
    stepper = Stepper(model, objective, adamw(model), settings)
    batches: Any = AlwaysThis(batch, place)
    if place.type == "cuda":  # before the first: what a recorded step uses is told when it is recorded
        torch.cuda.reset_peak_memory_stats()
    for _ in range(WARM):
        stepper.update(batches)
    if place.type != "cuda":
        start = time.perf_counter()
        stepper.update(batches)
        seconds = time.perf_counter() - start
        return Measured(seconds, seconds, None)
    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]
    events[0].record()
    hosts = []
    for event in events[1:]:
        start = time.perf_counter()
        stepper.update(batches)
        hosts.append(time.perf_counter() - start)
        event.record()
    torch.cuda.synchronize()
    times = [first.elapsed_time(last) / 1e3 for first, last in itertools.pairwise(events)]
    peak = torch.cuda.max_memory_allocated() - others
    return Measured(statistics.median(times), statistics.median(hosts), peak, kernels_of(stepper, batches))


def kernels_of(stepper: Stepper, batches: Any) -> dict[str, list[float]]:
    """Each kernel of one step: how often, and for how many milliseconds in all."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        stepper.update(batches)
        torch.cuda.synchronize()
    found: dict[str, list[float]] = {}
    for event in profiler.key_averages():
        spent = float(getattr(event, "self_device_time_total", 0))
        if spent > 0:
            count, before = found.get(event.key[:160], [0, 0.0])
            found[event.key[:160]] = [count + event.count, round(before + spent / 1e3, 4)]
    return dict(sorted(found.items(), key=lambda item: -item[1][1])[:80])


if __name__ == "__main__":
    main()
