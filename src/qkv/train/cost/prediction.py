"""A prediction: what a step and a run will take, as a plain value."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from qkv.errors import QkvError
from qkv.train.cost.backends import CUDNN_PREFERRED
from qkv.train.cost.measure_host import calls_of, launches
from qkv.train.cost.memory import Memory, peak_of
from qkv.train.cost.profile import DeviceProfile
from qkv.train.cost.step import MakeOptimizer, trace_forward, trace_step
from qkv.train.cost.tracer import BACKWARD, FORWARD, UPDATE, Trace
from qkv.train.objectives.loss import Batch, Objective
from qkv.train.recordable import why_plain
from qkv.train.settings import TrainSettings


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a step takes, and a run of so many steps; what depends on time is None where no device was measured."""

    parameters: int
    learned: int  # of the parameters
    counted: int  # things that the loss of a step counts
    counts: str  # what these are: tokens, pictures, hidden tokens
    flops_forward: int
    flops_backward: int
    memory: Memory  # bytes at the peak
    device: str
    device_memory: int | None
    seconds: float | None = None  # of one step
    device_seconds: float | None = None  # for which the device is busy
    host_seconds: float | None = None  # for which the host is
    fraction_of_peak: float | None = None
    steps: int | None = None

    @property
    def flops(self) -> int:
        return self.flops_forward + self.flops_backward

    @property
    def total_seconds(self) -> float | None:
        """Of the whole run."""
        return None if self.seconds is None or self.steps is None else self.seconds * self.steps

    @property
    def per_second(self) -> float | None:
        """Counted things a second, tokens mostly."""
        return None if not self.seconds else self.counted / self.seconds

    @property
    def fits(self) -> bool | None:
        return None if not self.device_memory else self.memory.total <= self.device_memory

    def record(self) -> dict[str, Any]:
        """As JSON."""
        more = {"flops": self.flops, "total_seconds": self.total_seconds, "per_second": self.per_second}
        return {
            **asdict(self),
            "memory": {**asdict(self.memory), "total": self.memory.total},
            **more,
            "fits": self.fits,
        }


def predict(
    model: nn.Module,
    objective: Objective,
    batch: Batch,
    settings: TrainSettings,
    *,
    place: torch.device,
    profile: DeviceProfile | None,
    optimizer: MakeOptimizer | None,
    device: str,
) -> Cost:
    """The cost of a step on a batch like this one; without an optimizer, of a pass that learns nothing."""
    trace, counted = traced(model, objective, batch, settings, place=place, profile=profile, optimizer=optimizer)
    counts = getattr(objective, "counts", "tokens")
    recorded = optimizer is not None and why_plain(model, objective, settings, place) is None
    return cost_of(
        trace, model, counted, counts, settings, profile, device, learns=optimizer is not None, recorded=recorded
    )


def cost_of(
    trace: Trace,
    model: nn.Module,
    counted: int,
    counts: str,
    settings: TrainSettings,
    profile: DeviceProfile | None,
    device: str,
    *,
    learns: bool = True,
    recorded: bool = False,
) -> Cost:
    """What a trace comes to on a device; `recorded` steps are one launch each."""
    flops = Counter[str]()
    for (phase, work), times in trace.works.items():
        flops[phase] += work.flops * times
    cost: dict[str, Any] = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "learned": sum(each.numel() for each in model.parameters() if each.requires_grad and learns),
        "counted": counted,
        "counts": counts,
        "flops_forward": flops[FORWARD],
        "flops_backward": flops[BACKWARD] + flops[UPDATE],
        "memory": peak_of(trace, profile.libraries if profile is not None else 0),
        "device": device,
        "device_memory": None if profile is None else profile.memory,
        "steps": settings.steps,
    }
    if profile is not None and f"{settings.precision} {FORWARD}" in profile.host:
        cost |= _times(trace, profile, settings.precision, sum(flops.values()), recorded)
    return Cost(**cost)


def traced(
    model: nn.Module,
    objective: Objective,
    batch: Batch,
    settings: TrainSettings,
    *,
    place: torch.device,
    profile: DeviceProfile | None,
    optimizer: MakeOptimizer | None,
) -> tuple[Trace, int]:
    if settings.precision == "float8":
        raise QkvError("Costs are not foretold for products in 8 bits: ask for precision bfloat16.")
    order = CUDNN_PREFERRED if profile is None else profile.attention_order
    workspace = None if profile is None else profile.workspace
    generation = None if profile is None else profile.generation
    if optimizer is None:
        return trace_forward(model, objective, batch, settings, place, order, workspace, generation)
    return trace_step(model, objective, optimizer, batch, settings, place, order, workspace, generation)


def _times(trace: Trace, profile: DeviceProfile, precision: str, flops: int, recorded: bool) -> dict[str, Any]:
    busy = sum(seconds for _, seconds in busy_times(trace, profile))
    launched = launches(trace)
    host = profile.host[f"{precision} {UPDATE}"] * launched[UPDATE]
    if not recorded:  # otherwise all before the update is one launch
        host += sum(profile.host[f"{precision} {phase}"] * launched[phase] for phase in (FORWARD, BACKWARD))
        host += sum(profile.host.get(kernel, 0.0) * times for kernel, times in calls_of(trace).items())
    # A GPU works while its host prepares what comes next; a CPU is its own host.
    seconds = max(busy, host) if profile.kind == "cuda" else busy + host
    peak = profile.peak(precision)
    return {
        "seconds": seconds,
        "device_seconds": busy,
        "host_seconds": host,
        "fraction_of_peak": flops / seconds / peak if peak else None,
    }


def busy_times(trace: Trace, profile: DeviceProfile) -> list[tuple[tuple[str, str, str], float]]:
    """((phase, kind, operator), seconds) of all that a device does."""
    return [
        ((phase, work.kind, work.name), times * profile.seconds(work)) for (phase, work), times in trace.works.items()
    ]
