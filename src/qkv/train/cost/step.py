"""One step of training, or one pass forward, taken with shapes alone by the very code that trains."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from qkv.errors import QkvError
from qkv.train.cost.calls import DeviceCalls
from qkv.train.cost.shaped import pretending, shaped_copy, without_numbers
from qkv.train.cost.stand_ins import own_kernels
from qkv.train.cost.tracer import BACKWARD, FORWARD, UPDATE, Trace, Tracer
from qkv.train.objectives.loss import Batch, Loss, Objective
from qkv.train.settings import TrainSettings
from qkv.train.step import Stepper
from qkv.train.streamed import streamed_stacks

MakeOptimizer = Callable[[nn.Module], Optimizer]


class AlwaysThis:
    """The same batch for every micro-batch; of a prefetched stream a step asks no more than this."""

    behind_whole, idle = True, False

    def __init__(self, batch: Batch, device: torch.device) -> None:
        self.batch, self.device, self.position = batch, device, dict[str, Any]()

    def take(self) -> Batch:
        return self.batch

    def rewind(self, position: dict[str, Any]) -> None:
        pass

    def divide(self, position: dict[str, Any]) -> None:
        """It cannot be smaller."""

    def fetch(self) -> None:
        pass


class SureStepper(Stepper):
    """Shapes alone are always finite: nobody need ask the device."""

    def _apply(self, finite: torch.Tensor) -> None:
        if getattr(self.optimizer, "_step_supports_amp_scaling", False):
            super()._apply(finite)
        else:
            self.optimizer.step()


def trace_step(
    model: nn.Module,
    objective: Objective,
    optimizer: MakeOptimizer,
    batch: Batch,
    settings: TrainSettings,
    place: torch.device,
    attention: tuple[str, ...],
    workspace: Callable[..., int] | None = None,
    generation: int | None = None,
) -> tuple[Trace, int]:
    """What an update of the weights does, in a run that has long begun, and how many things its loss counts."""

    def step(tracer: Tracer, calls: DeviceCalls, shapes: nn.Module, here: Batch) -> int:
        shapes.train()
        made = optimizer(shapes)
        parameters = [parameter for group in made.param_groups for parameter in group["params"]]
        for parameter in parameters:  # an update changes what the optimizer keeps: it is there when a step begins
            parameter.grad = torch.empty_like(parameter)
        made.step()
        made.zero_grad(set_to_none=True)
        tracer.own((value for state in made.state.values() for value in state.values() if torch.is_tensor(value)),
                   "optimizer")  # fmt: skip

        def forward(model: nn.Module, batch: Batch) -> Loss:
            with tracer.during(FORWARD):
                return objective(model, batch)

        stepper = SureStepper(shapes, forward, made, replace(settings, record=False))
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(lambda each: tracer.own([each.grad], "gradients"))
        calls.during_backward = lambda: tracer.during(BACKWARD)
        with tracer.during(UPDATE), _in_stream(shapes, settings, place), _recomputing(shapes, settings):
            return stepper.update(AlwaysThis(here, place)).count  # type: ignore[arg-type]

    return _traced(step, model, batch, place, attention, workspace, generation)


def trace_forward(
    model: nn.Module,
    objective: Objective,
    batch: Batch,
    settings: TrainSettings,
    place: torch.device,
    attention: tuple[str, ...],
    workspace: Callable[..., int] | None = None,
    generation: int | None = None,
) -> tuple[Trace, int]:
    """The same for a pass that learns nothing, as in an evaluation."""

    def step(tracer: Tracer, calls: DeviceCalls, shapes: nn.Module, here: Batch) -> int:
        shapes.eval()
        with torch.no_grad(), settings.autocast(place), tracer.during(FORWARD):
            return objective(shapes, here).count

    return _traced(step, model, batch, place, attention, workspace, generation)


def _traced(
    step: Callable[[Tracer, DeviceCalls, nn.Module, Any], int],
    model: nn.Module,
    batch: Batch,
    place: torch.device,
    attention: tuple[str, ...],
    workspace: Callable[..., int] | None = None,
    generation: int | None = None,
) -> tuple[Trace, int]:
    tracer, calls = Tracer(place, workspace), DeviceCalls(place, attention)
    generator = torch.get_rng_state()
    try:
        with pretending(place, generation), own_kernels(tracer), tracer, calls.standing_in():
            shapes = shaped_copy(model, place)
            tracer.own([*shapes.parameters(), *shapes.buffers()], "weights")
            here = _there(batch, place)
            count = step(tracer, calls, shapes, here)
            trace = tracer.trace
            del shapes, here
    except (NotImplementedError, RuntimeError) as error:
        if isinstance(error, QkvError):
            raise
        raise QkvError(
            f"What a step of this model takes cannot be told from shapes alone ({_first_line(error)})."
        ) from error
    finally:
        torch.set_rng_state(generator)
    return trace, count


def _there(batch: Batch, place: torch.device) -> Batch:
    """The batch as shapes on the device. On a CPU parts look at ids and lengths, so these keep their numbers there."""
    if place.type != "cpu":
        return batch.to(place)
    tensors = {each.name: getattr(batch, each.name) for each in fields(batch)}  # type: ignore[arg-type]
    large = {
        name: without_numbers(value, place)
        for name, value in tensors.items()
        if torch.is_tensor(value) and (value.is_floating_point() or value.dim() > 2)
    }
    return replace(batch, **large)  # type: ignore[type-var]


def _in_stream(model: nn.Module, settings: TrainSettings, place: torch.device) -> AbstractContextManager[None]:
    """As `train/loop.py` has it."""
    return streamed_stacks(model) if place.type == "cuda" and not settings.compile else nullcontext()


def _recomputing(model: nn.Module, settings: TrainSettings) -> AbstractContextManager[None]:
    if not settings.recompute:
        return nullcontext()
    from qkv.train.parallel.recompute import recompute_blocks

    return recompute_blocks(model)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:160].rstrip(".")
