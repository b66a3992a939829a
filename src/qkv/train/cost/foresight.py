"""What was foretold of a run's steps, told beside what came of them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from qkv.errors import QkvError
from qkv.train.cost.prediction import Cost, predict
from qkv.train.cost.profile import find_profile
from qkv.train.objectives.loss import Batch, Objective
from qkv.train.settings import TrainSettings

_FAILURES = (
    QkvError, RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError, ImportError, OSError,
)  # fmt: skip


def foreseen(
    model: nn.Module,
    objective: Objective,
    optimizer: Optimizer,
    batch: Batch,
    settings: TrainSettings,
    device: torch.device,
) -> Cost | None:
    """The cost of a step on a batch like the first; None where the device was not measured, or none can be told.

    Compiled steps and those in 8 bits are others than those that are foretold.
    """
    if settings.compile or settings.precision == "float8":
        return None
    try:
        profile = find_profile(str(device))
        if profile is None:
            return None
        place = torch.device("cuda", device.index or 0) if device.type == "cuda" else device
        like = _Like(model, optimizer)
        return predict(
            model, objective, batch, settings, place=place, profile=profile, optimizer=like, device=profile.name
        )
    except _FAILURES:  # a model that looks at numbers, or whatever it is: the training must be none the worse for it
        return None


class _Like:
    """Makes an optimizer for a copy of a model, as there is one for the model itself."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.kind, self.groups = type(optimizer), []
        known = inspect.signature(self.kind.__init__).parameters
        self.defaults = {name: value for name, value in optimizer.defaults.items() if name in known}
        for group in optimizer.param_groups:
            if any(id(parameter) not in names for parameter in group["params"]):
                raise QkvError("The optimizer changes parameters that are not the model's.")
            settings = {name: value for name, value in group.items() if name in known}
            self.groups.append((settings, [names[id(parameter)] for parameter in group["params"]]))

    def __call__(self, copy: nn.Module) -> Optimizer:
        parameters = dict(copy.named_parameters())
        groups = [{**settings, "params": [parameters[name] for name in names]} for settings, names in self.groups]
        made: Optimizer = self.kind(groups, **self.defaults)
        return made


def beside(foretold: Mapping[str, Any], step_seconds: float | None, peak_memory: int | None, on_gpu: bool) -> str:
    """One sentence: what was foretold of steps, and what was measured."""
    parts = []
    if foretold["seconds"] is not None and step_seconds is not None:
        parts.append(f"{1e3 * foretold['seconds']:.1f} ms a step foretold, {1e3 * step_seconds:.1f} ms measured")
    if on_gpu and peak_memory is not None:
        gibibytes = 2**30
        memory = foretold["memory"]["total"] / gibibytes
        parts.append(f"{memory:.2f} GiB foretold, {peak_memory / gibibytes:.2f} GiB measured")
    return "; ".join(parts)
