"""A few steps that are not part of any training: to see that one can begin, to make its programs, to time it."""

import statistics
import time
from dataclasses import dataclass

import torch
from torch import nn

from qkv.train.objectives.loss import Batch, Objective
from qkv.train.settings import TrainSettings

REPEATS = 3


@dataclass(frozen=True)
class StepSpeed:
    tokens_per_second: float
    peak_memory: int | None  # bytes of a GPU; None elsewhere, where it cannot be told from what others hold


def rehearse(model: nn.Module, objective: Objective, batch: Batch, settings: TrainSettings) -> None:
    """One step forward and back. Programs that are made for a shape when it is first met are made here."""
    device = settings.torch_device()
    model.to(device).train()
    _step(model, objective, batch.to(device), settings, None)


def step_speed(
    model: nn.Module,
    objective: Objective,
    batch: Batch,
    settings: TrainSettings,
    optimizer: torch.optim.Optimizer,
) -> StepSpeed:
    """Predicted tokens a second of whole updates: the middle of a few, after two that are not counted.

    The memory is that of the model, the optimizer and the steps; what else lies on the device is not counted.
    """
    device = settings.torch_device()
    others = _held(device) - sum(parameter.nbytes for parameter in model.parameters() if parameter.is_cuda)
    batch = batch.to(device)
    model.train()
    for _ in range(2):
        count = _step(model, objective, batch, settings, optimizer)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        _step(model, objective, batch, settings, optimizer)
        seconds.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated(device) - others if device.type == "cuda" else None
    return StepSpeed(count / statistics.median(seconds), peak)


def _held(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _step(
    model: nn.Module,
    objective: Objective,
    batch: Batch,
    settings: TrainSettings,
    optimizer: torch.optim.Optimizer | None,
) -> int:
    """The tokens it predicted, once the device has done it."""
    device = settings.torch_device()
    with settings.autocast(device):
        loss = objective(model, batch)
    (loss.total / max(1, loss.count)).backward()
    if optimizer is not None:
        optimizer.step()
    model.zero_grad(set_to_none=True)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return loss.count
