"""What a step takes on each of many ranks: memory, what ranks send each other, and time.

The plan of a rank is that of a device with its part of the rows, slots, heads and experts, whose step is taken with
shapes alone, and what that step says to other ranks on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from torch import nn

from qkv.errors import QkvError
from qkv.train.cost.backends import CUDNN_PREFERRED
from qkv.train.cost.memory import peak_of
from qkv.train.cost.profile import DeviceProfile
from qkv.train.cost.ranks_links import (
    BACK_PARAMETERS,
    BETWEEN_GROUPS,
    FIGURES,
    FORWARD_PARAMETERS,
    GATHER,
    GRADIENTS,
    KINDS,
    SCATTER,
    SUM,
    Links,
    Message,
    seconds_of,
)
from qkv.train.cost.ranks_model import Unit, part_of_rank, shards, units_of
from qkv.train.cost.ranks_notes import Notes
from qkv.train.cost.ranks_time import times
from qkv.train.cost.step import MakeOptimizer, trace_forward, trace_step, trace_update
from qkv.train.cost.tracer import FORWARD, Trace
from qkv.train.objectives.loss import Batch, Objective
from qkv.train.optimizers.signs import Lion
from qkv.train.parallel.layout import Layout
from qkv.train.settings import TrainSettings

# Blocks that are whole at once, as torch's `fully_shard` has them at most: of parameters one is used and the next on
# its way, of gradients one is made and copies of two are summed.
AHEAD, LEAVING = 2, 3
LOSS, NORM = 4, 8  # bytes: a sum in float32, a square in float64
BACK_OF = {"product": 2.0, "attention": 2.5}  # operations on the way back for each on the way forward


@dataclass(frozen=True)
class RankMemory:
    """Bytes on a rank, each at its largest: they need not all be so at the same moment."""

    parameters: int  # the rank's share
    gradients: int  # the rank's share
    optimizer: int
    activations: int  # kept for the way back
    gathered: int  # whole blocks: what is used, and what is on its way; and what belongs to no block
    temporary: int  # what one operator hands to the next, and gradients before they are scattered

    @property
    def total(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self))


@dataclass(frozen=True, kw_only=True)
class RankCost:
    """What a step takes on each rank; what depends on time is None where no device was measured."""

    layout: str
    ranks: int
    per_node: int
    parameters: int  # of the whole model
    counted: int  # things that the loss of a step counts, on all ranks
    counts: str
    flops: int  # of all ranks together, what is computed twice counted once
    memory: RankMemory
    messages: tuple[Message, ...]
    links: Links
    device: str
    device_memory: int | None
    seconds: float | None = None  # of one step
    compute_seconds: float | None = None
    waiting_seconds: float | None = None  # in which a rank does nothing but wait for others
    fraction_of_peak: float | None = None
    steps: int | None = None

    @property
    def fits(self) -> bool | None:
        return None if not self.device_memory else self.memory.total <= self.device_memory

    @property
    def per_second(self) -> float | None:
        return None if not self.seconds else self.counted / self.seconds

    @property
    def total_seconds(self) -> float | None:
        """Of the whole run."""
        return None if self.seconds is None or self.steps is None else self.seconds * self.steps

    def sent(self) -> dict[str, tuple[float, float, float]]:
        """By kind: bytes that a rank sends within its node and to others in a step, and seconds on the links."""
        found: dict[str, tuple[float, float, float]] = {}
        for kind in KINDS:
            own = [message for message in self.messages if message.kind == kind]
            if own:
                within, across = (sum(each.sent(self.per_node)[at] for each in own) for at in (0, 1))
                found[kind] = within, across, seconds_of(own, [kind], self.links, self.per_node)
        return found

    def record(self) -> dict[str, Any]:
        """As JSON."""
        told = {name: value for name, value in asdict(self).items() if name != "messages"}
        sent = {
            kind: {"within": within, "between": across, "seconds": seconds}
            for kind, (within, across, seconds) in self.sent().items()
        }
        more = {"per_second": self.per_second, "total_seconds": self.total_seconds, "fits": self.fits, "sent": sent}
        return {**told, "memory": {**asdict(self.memory), "total": self.memory.total}, **more}


@dataclass(frozen=True)
class Asked:
    """What is trained, how, and where: all that a layout does not say."""

    model: nn.Module
    objective: Objective
    batch: Batch  # of one rank, whole rows
    settings: TrainSettings
    place: torch.device
    profile: DeviceProfile | None
    optimizer: MakeOptimizer
    device: str
    links: Links
    per_node: int

    @property
    def kernels(self) -> tuple[str, ...]:
        return CUDNN_PREFERRED if self.profile is None else self.profile.attention_order

    @property
    def generation(self) -> int | None:
        return None if self.profile is None else self.profile.generation


@dataclass(frozen=True)
class RankSteps:
    """What a rank does in a step, before its parameters are sharded: the same for any number of data ranks."""

    part: nn.Module
    passes: Trace
    notes: Notes
    counted: int
    flops: int  # of the same rows in one process, each computed once


def rank_steps(asked: Asked, layout: Layout) -> RankSteps:
    """A rank's way forward and back."""
    notes = Notes()
    part = part_of_rank(asked.model, layout, notes)
    for number, unit in enumerate(units_of(part, layout)):
        unit.module.register_forward_pre_hook(lambda *_, number=number: notes.use(number))
    objective, batch = asked.objective, asked.batch
    if layout.context > 1:
        objective, batch = _with_shared_rows(asked, layout, notes)
    workspace = None if asked.profile is None else asked.profile.workspace
    passes, counted = trace_step(
        part, objective, _keeps_nothing, batch, asked.settings, asked.place, asked.kernels, workspace, asked.generation
    )
    return RankSteps(part, passes, notes, counted, _flops_of_whole(asked))


def _with_shared_rows(asked: Asked, layout: Layout, notes: Notes) -> tuple[Any, Any]:
    from qkv.train.cost.ranks_rows import RowsOfRank
    from qkv.train.parallel.context import InStretches, check_context

    check_context(asked.model, asked.objective)
    rows = RowsOfRank(layout, notes)
    return InStretches(asked.objective, rows), rows.part(asked.batch)


def _keeps_nothing(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1.0)


def _flops_of_whole(asked: Asked) -> int:
    """Forward and back of the whole model: what several ranks compute alike is of use once."""
    trace, _ = trace_forward(asked.model, asked.objective, asked.batch, asked.settings, asked.place, asked.kernels)
    operations = sum(work.flops * times * (1 + BACK_OF.get(work.kind, 0.0)) for (_, work), times in trace.works.items())
    return int(operations * asked.settings.accumulate)


def cost_on_ranks(asked: Asked, layout: Layout, steps: RankSteps | None = None) -> RankCost:
    """The cost of a step on every rank of a layout, which says how many there are."""
    if layout.ranks < 2:
        raise QkvError("A plan for ranks needs two of them or more: leave out ranks for one device.")
    found = steps or rank_steps(asked, layout)
    units = units_of(found.part, layout)
    own = shards(found.part, units)
    _check_optimizer(asked.optimizer(own))
    update, kept = trace_update(own, asked.optimizer, asked.settings, asked.place)
    messages = [*found.notes.messages, *messages_of(units, found.notes, layout, asked.settings.accumulate)]
    sees = layout.data * (layout.context if layout.context > 1 else 1)
    cost: dict[str, Any] = {
        "layout": str(layout),
        "ranks": layout.ranks,
        "per_node": asked.per_node,
        "parameters": sum(parameter.numel() for parameter in asked.model.parameters()),
        "counted": found.counted * sees,
        "counts": getattr(asked.objective, "counts", "tokens"),
        "flops": found.flops * layout.data,
        "memory": _memory(found.passes, units, kept, asked.profile),
        "messages": joined(messages),
        "links": asked.links,
        "device": asked.device,
        "device_memory": None if asked.profile is None else asked.profile.memory,
        "steps": asked.settings.steps,
    }
    profile = asked.profile
    if profile is not None and f"{asked.settings.precision} {FORWARD}" in profile.host:
        cost |= times(
            profile,
            asked.settings,
            asked.links,
            asked.per_node,
            found.passes,
            update,
            units,
            joined(messages),
            cost["flops"] / layout.ranks,
        )
    return RankCost(**cost)


def _check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Those that change each number by what is known of it alone: others gather matrices, or are refused to ranks."""
    if not isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW | torch.optim.SGD | Lion):
        raise QkvError(
            f"What {type(optimizer).__name__} takes on many ranks cannot be told: plans know adamw, adam and lion."
        )


def messages_of(units: Sequence[Unit], notes: Notes, layout: Layout, accumulate: int) -> list[Message]:
    """What is said about parameters and gradients. [zhao2023 §3]"""
    found: list[Message] = []
    for number, unit in enumerate(units):
        uses = accumulate if unit.stays else notes.uses.get(number, 0)
        if unit.ranks > 1:
            found.append(Message(FORWARD_PARAMETERS, GATHER, unit.ranks, unit.apart, unit.whole(), uses))
            if not unit.stays:
                found.append(Message(BACK_PARAMETERS, GATHER, unit.ranks, unit.apart, unit.whole(), uses))
            found.append(Message(GRADIENTS, SCATTER, unit.ranks, unit.apart, unit.whole(True), accumulate))
        if unit.replicas > 1:
            apart = unit.ranks * unit.apart
            found.append(Message(BETWEEN_GROUPS, SUM, unit.replicas, apart, unit.held(True), accumulate))
    found.append(Message(FIGURES, SUM, layout.data * layout.context, layout.tensor, LOSS))
    found.append(Message(FIGURES, SUM, layout.ranks, 1, NORM))
    return found


def joined(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Those that are alike as one of so many times; those about nothing left out."""
    times: dict[Message, int] = {}
    for each in messages:
        if each.bytes and each.ranks > 1:
            alike = replace(each, times=1)
            times[alike] = times.get(alike, 0) + each.times
    return tuple(replace(each, times=count) for each, count in times.items())


def _memory(passes: Trace, units: Sequence[Unit], kept: int, profile: DeviceProfile | None) -> RankMemory:
    made = {  # in the step itself: what is there before are weights, and gradients that only warm an optimizer up
        number: replace(held, bytes=0 if held.owner or held.phase is None else held.bytes)
        for number, held in passes.held.items()
    }
    peak = peak_of(replace(passes, held=made), profile.libraries if profile is not None else 0)
    passing = [unit for unit in units if not unit.stays]
    staying = [unit for unit in units if unit.stays]
    return RankMemory(
        parameters=sum(unit.held() for unit in units),
        gradients=sum(unit.held(True) for unit in units),
        optimizer=kept,
        activations=peak.activations,
        gathered=sum(unit.whole() for unit in staying) + AHEAD * max((unit.whole() for unit in passing), default=0),
        temporary=peak.temporary
        + sum(unit.whole(True) for unit in staying)
        + LEAVING * max((unit.whole(True) for unit in passing), default=0),
    )
