"""A few steps that are not part of any training: to see that one can begin, to make its programs, to time it."""

import statistics
import time
from dataclasses import dataclass

import torch
from torch import nn

from qkv.parts.device import wait_for
from qkv.train.cost.step import AlwaysThis
from qkv.train.objectives.loss import Batch, Objective
from qkv.train.settings import TrainSettings
from qkv.train.step import Stepper

REPEATS = 3


@dataclass(frozen=True)
class StepSpeed:
    tokens_per_second: float
    peak_memory: int | None  # bytes of a GPU; None elsewhere, where it cannot be told from what others hold


def rehearse(model: nn.Module, objective: Objective, batch: Batch, settings: TrainSettings) -> None:
    """One step forward and back. Programs that are made for a shape when it is first met are made here."""
    device = settings.torch_device()
    model.to(device).train()
    with settings.autocast(device):
        loss = objective(model, batch.to(device))
    (loss.total / max(1, loss.count)).backward()
    model.zero_grad(set_to_none=True)
    wait_for(device)


def step_speed(
    model: nn.Module,
    objective: Objective,
    batch: Batch,
    settings: TrainSettings,
    optimizer: torch.optim.Optimizer,
) -> StepSpeed:
    """Predicted tokens a second of whole updates, as a training takes them: the middle of a few, after some that are
    not counted.

    The memory is that of the model, the optimizer and the steps; what else lies on the device is not counted.
    """
    device = settings.torch_device()
    others = _held(device) - sum(parameter.nbytes for parameter in model.parameters() if parameter.is_cuda)
    stepper, batches = Stepper(model.train(), objective, optimizer, settings), AlwaysThis(batch.to(device), device)
    if device.type == "cuda":  # before the first: what a recorded step uses is told when it is recorded
        torch.cuda.reset_peak_memory_stats(device)
    uncounted = 2 if stepper.recorded is None else 3  # the third is recorded
    seconds = []
    for _ in range(uncounted + REPEATS):
        began = time.perf_counter()
        count = stepper.update(batches).count  # type: ignore[arg-type]
        wait_for(device)
        seconds.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated(device) - others if device.type == "cuda" else None
    stepper.forget_records()
    return StepSpeed(count / statistics.median(seconds[uncounted:]), peak)


def _held(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
