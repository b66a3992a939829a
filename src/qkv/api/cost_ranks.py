"""What a training takes of each of many GPUs, before any of them is there: one page's arithmetic.

A rank computes what one device would on its rows, divided by the ranks that share each row; what it keeps and sends
follows from how the ranks share the work. [zhao2023 §3]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from qkv.api.choices import DESK, Sizes
from qkv.api.cost import MakeOptimizer, find_device, priced_model, settings_of, typical_step
from qkv.errors import QkvError, nearest_or_all
from qkv.models.attention_choice import AttentionChoice
from qkv.models.head_choice import HeadChoice
from qkv.models.image_model import ImageModel
from qkv.parts.attention.attention import MultiHead
from qkv.parts.block import Block
from qkv.train.cost.measure_host import calls_of, launches
from qkv.train.cost.memory import Memory, peak_of
from qkv.train.cost.operators import Work
from qkv.train.cost.prediction import Cost, busy_times, traced
from qkv.train.cost.profile import DeviceProfile
from qkv.train.cost.tracer import BACKWARD, FORWARD, UPDATE, Trace
from qkv.train.objectives.expert_losses import with_expert_losses
from qkv.train.optimizers import adamw
from qkv.train.optimizers.signs import Lion
from qkv.train.parallel.context import check_context
from qkv.train.parallel.layout import Layout
from qkv.train.parallel.tensor import PLANS, divided_parts

PER_NODE = 8
LINKS = {"within": 450.0, "between": 50.0}  # GB/s that a GPU sends: NVLink 4, InfiniBand NDR; promised by makers
# Blocks that are whole at once, as `fully_shard` has them at most: parameters of two, gradients of three.
WHOLE_BLOCKS = 2 + 3
# Of 34 bytes that a block keeps for each number of the stream, 10 are the stream and its norms, and thus whole on
# every tensor rank; a block that is computed again keeps nothing else.
UNDIVIDED = 10 / 34
HIDDEN = ("parameters", "gradients", "gradients of replicas")  # travel while something is computed


@dataclass(frozen=True, kw_only=True)
class RankCost(Cost):
    """What a step takes on each rank; what is counted, operations and parameters are those of all ranks together."""

    layout: str
    ranks: int
    per_node: int
    sent: Mapping[str, tuple[float, float]]  # what -> bytes that a rank sends within its node, and to others
    waiting_seconds: float | None = None  # in which a rank does nothing but wait for others


class Plans:
    """Plans of one training for layouts of its ranks; a step that several of them share is traced once."""

    def __init__(
        self,
        model: nn.Module | str,
        sizes: Sizes = DESK,
        *,
        ranks: int,
        per_node: int = PER_NODE,
        links: str = "",
        rows: int = 8,
        length: int | None = None,
        target_length: int | None = None,
        head: HeadChoice | None = None,
        attention: AttentionChoice | str | None = None,
        precision: str = "auto",
        device: str | DeviceProfile = "auto",
        steps: int | None = None,
        accumulate: int = 1,
        optimizer: MakeOptimizer = partial(adamw, weight_decay=0.1),  # noqa: B008 (never changed)
    ) -> None:
        if ranks < 2 or per_node < 1:
            raise QkvError("A plan for ranks needs 2 or more of them, and 1 or more on a node.")
        self.place, self.profile, self.device = find_device(device)
        self.settings = settings_of(steps, precision, accumulate, False, self.place)
        self.model = priced_model(model, sizes, head, attention, length)
        self.ranks, self.per_node, self.links, self.optimizer = ranks, per_node, links_of(links), optimizer
        self.rows, self.length, self.target_length = rows, length, target_length
        self.found: dict[tuple[int, bool], tuple[Trace, Any, int, int]] = {}

    def cost(self, layout: Layout, recompute: bool) -> RankCost:
        layout = layout.fitted(self.ranks)
        if layout.expert > 1:
            raise QkvError("Plans do not tell what tokens that travel to experts take: leave out expert.")
        if self.rows < layout.data:
            raise QkvError(
                f"{layout.data} ranks would each see rows of their own, and a batch has {self.rows}: give more rows, "
                "or more ranks to tensor or context."
            )
        rows = -(-self.rows // layout.data)
        trace, objective, counted, slots = self._step(rows, recompute)
        if layout.context > 1:
            check_context(self.model, objective)
        held, useful = Held(self.model, layout), Counter[str]()
        for (phase, work), times in self._step(rows, False)[0].works.items():  # what is computed twice is of use once
            useful[phase] += work.flops * times * layout.data
        sent = dict(sent_by(self, layout, held, slots, recompute))
        cost = RankCost(
            parameters=held.numbers,
            learned=sum(each.numel() for each in self.model.parameters() if each.requires_grad),
            counted=counted * layout.data,
            counts=getattr(objective, "counts", "tokens"),
            flops_forward=useful[FORWARD],
            flops_backward=useful[BACKWARD],
            memory=memory_of(trace, held, layout, recompute, 0 if self.profile is None else self.profile.libraries),
            device=self.device,
            device_memory=None if self.profile is None else self.profile.memory,
            steps=self.settings.steps,
            layout=str(layout),
            ranks=self.ranks,
            per_node=self.per_node,
            sent=sent,
        )
        profile, precision = self.profile, self.settings.precision
        if profile is None or f"{precision} {FORWARD}" not in profile.host:
            return cost
        passes = seconds_of(trace, profile, precision, (FORWARD, BACKWARD), layout.tensor * layout.context)
        if "parameters" in sent:  # copied into one piece of memory, or out of it, thrice
            passes += 3 * self.settings.accumulate * profile.seconds(Work("copy", "message", 0, 2 * held.own))
        update = seconds_of(trace, profile, precision, (UPDATE,), held.whole / held.share)
        # Bytes by the slower of both kinds of links.
        waits = {
            name: max(size / (1e9 * self.links[link]) for size, link in zip(sizes, LINKS, strict=True))
            for name, sizes in sent.items()
        }
        hidden = sum(waits.get(name, 0.0) for name in HIDDEN)
        waiting = sum(waits.values()) - hidden + max(0.0, hidden - passes)
        seconds, peak = passes + waiting + update, profile.peak(precision)
        share = cost.flops / self.ranks / seconds / peak if peak else None
        return replace(cost, seconds=seconds, waiting_seconds=waiting, fraction_of_peak=share)

    def _step(self, rows: int, recompute: bool) -> tuple[Trace, Any, int, int]:
        """What one device does on so many rows, its objective, how much that counts, and the slots of the rows."""
        if (rows, recompute) not in self.found:
            objective, batch = typical_step(self.model, rows, self.length, self.target_length)
            objective = with_expert_losses(self.model, objective)
            settings = replace(self.settings, recompute=recompute)
            trace, counted = traced(
                self.model, objective, batch, settings, place=self.place, profile=self.profile, optimizer=self._made
            )
            length = self.length or 256
            if isinstance(self.model, ImageModel):
                length = self.model.embed.count(batch.pixels)  # type: ignore[attr-defined]
            self.found[rows, recompute] = trace, objective, counted, rows * length
        return self.found[rows, recompute]

    def _made(self, model: nn.Module) -> torch.optim.Optimizer:
        made = self.optimizer(model)
        if not isinstance(made, torch.optim.Adam | torch.optim.AdamW | torch.optim.SGD | Lion):
            raise QkvError(
                f"What {type(made).__name__} takes on many ranks cannot be told: plans know adamw, adam and lion."
            )
        return made

    def tried(self, layouts: Iterable[Layout], recompute: bool) -> Iterator[RankCost]:
        """Of those that the model and the batch allow."""
        for layout in layouts:
            try:
                yield self.cost(layout, recompute)
            except QkvError:
                continue

    def best(self, recompute: bool) -> list[RankCost]:
        """Of all layouts with a power of two of ranks for each way, those that fit first, the fastest first."""
        ranks = self.ranks
        powers = [2**power for power in range(ranks.bit_length())]
        layouts = (
            Layout(replicate=replicate, context=context, tensor=tensor)
            for tensor in powers
            for context in powers
            for replicate in powers
            if tensor <= self.per_node and ranks % (tensor * context * replicate) == 0
        )
        found = self.tried(layouts, recompute)
        return sorted(found, key=lambda each: (each.fits is False, each.seconds or 0.0, each.memory.total))


class Held:
    """Bytes of a model's parameters: all of them, those that a rank has before it shards, and its share."""

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        self.divided = divided_parts(model, layout.tensor) if layout.tensor > 1 else []
        narrow = {id(getattr(part, name).weight) for part in self.divided for name in PLANS[type(part)]}
        own: dict[int, int] = {}
        self.numbers = self.whole = self.share = self.learned = 0
        for each in model.parameters():
            size = each.numel() * each.element_size()
            own[id(each)] = size // (layout.tensor if id(each) in narrow else 1)
            first = each.shape[:1].numel()  # is cut, and filled up where it cannot be cut evenly
            share = -(-first // (layout.shard * layout.context)) * own[id(each)] // max(1, first)
            self.numbers += each.numel()
            self.whole += size
            self.share += share
            self.learned += share if each.requires_grad else 0
        blocks = [{id(each) for each in block.parameters()} for block in model.modules() if isinstance(block, Block)]
        self.own = sum(own.values())
        self.block = max((sum(own[each] for each in block) for block in blocks), default=0)  # the largest
        self.others = self.own - sum(own[each] for each in set().union(*blocks))


def memory_of(trace: Trace, held: Held, layout: Layout, recompute: bool, always: int) -> Memory:
    """Bytes on a rank, each at its largest: they need not all be so at the same moment."""
    passing = {  # what the passes make: neither weights nor what the update takes
        number: replace(each, bytes=0 if each.owner or each.phase in (None, UPDATE) else each.bytes)
        for number, each in trace.held.items()
    }
    peak = peak_of(replace(trace, held=passing))
    divided = (1 if recompute else UNDIVIDED + (1 - UNDIVIDED) / layout.tensor) / layout.context
    kept = sum(each.bytes for each in trace.held.values() if each.owner == "optimizer")
    whole = WHOLE_BLOCKS * held.block + 2 * held.others
    return Memory(
        weights=held.share,
        gradients=held.learned,
        optimizer=kept * held.share // held.whole,
        activations=int(peak.activations * divided),
        temporary=int(peak.temporary / layout.context) + whole + always,
    )


def sent_by(
    plans: Plans, layout: Layout, held: Held, slots: int, recompute: bool
) -> Iterator[tuple[str, tuple[float, float]]]:
    """What a rank sends in a step: of a ring's r members each sends (r - 1)/r of the bytes. [patarasuk2009]"""

    def ring(size: float, ranks: int, apart: int) -> tuple[float, float]:
        """Of a ring's members on a node one sends to another node; `apart` is how far two neighbours are."""
        near = max(1, min(ranks, plans.per_node // apart))
        size *= plans.settings.accumulate * (ranks - 1) / ranks
        return (size, 0.0) if near == ranks else (size * (near - 1) / near, size / near)

    shards = layout.shard * layout.context
    bytes_each = 2 if plans.settings.precision == "bfloat16" else 4
    passes = (3 if recompute else 2) * bytes_each * slots  # forward and back, for each number of a slot
    if shards > 1:
        yield "parameters", ring(2 * held.own, shards, layout.tensor)  # forward and back
        yield "gradients", ring(held.own, shards, layout.tensor)
    if layout.replicate > 1:  # a sum is scattered, then gathered
        yield "gradients of replicas", ring(2 * held.learned, layout.replicate, shards * layout.tensor)
    if layout.tensor > 1:  # the stream is summed after each part, and its gradient before it [shoeybi2019 §3]
        widths = sum(getattr(part, list(PLANS[type(part)])[-1]).out_features for part in held.divided)
        yield "tensor sums", ring(2 * passes * widths / layout.context, layout.tensor, 1)
    if layout.context > 1:
        widths = sum(each.key_size + each.value_size for each in plans.model.modules() if isinstance(each, MultiHead))
        yield "keys and values", ring(passes * widths / layout.tensor, layout.context, layout.tensor)


def seconds_of(
    trace: Trace, profile: DeviceProfile, precision: str, phases: tuple[str, ...], divided: float
) -> float:  # fmt: skip
    """Of phases whose work so many ranks divide: those of the device, or of its host where that is slower."""
    own = replace(trace, works=Counter({key: times for key, times in trace.works.items() if key[0] in phases}))
    busy = sum(seconds for _, seconds in busy_times(own, profile)) / divided
    host = sum(profile.host[f"{precision} {phase}"] * times for phase, times in launches(own).items())
    host += sum(profile.host.get(kernel, 0.0) * times for kernel, times in calls_of(own).items())
    return max(busy, host) if profile.kind == "cuda" else busy + host


def cost_of_ranks(
    model: nn.Module | str, sizes: Sizes = DESK, *, parallel: str | Layout = "", recompute: bool = False, **more: Any
) -> RankCost:
    """Memory, what is sent, and time of a step on each of so many `ranks`, which share the `rows` of a batch.

    `parallel` says how they share the work, as for `qkv train`; `links` what joins them, such as
    `within:450,between:50` (GB/s of a GPU), and `per_node` how many are close. All else is as for `cost`.
    """
    layout = parallel if isinstance(parallel, Layout) else Layout.parse(parallel)
    return Plans(model, sizes, **more).cost(layout, recompute)


def links_of(text: str) -> Mapping[str, float]:
    """`within:450,between:50`, as it is spelled on the command line; what is not named stays."""
    links = dict(LINKS)
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = part.partition(":")
        if name not in links:
            raise QkvError(f"Links have no figure called {name!r}: {nearest_or_all(name, links)}")
        if not number.replace(".", "", 1).isdecimal() or not float(number):
            raise QkvError(f"{part!r} is no figure of links: give one above 0, such as between:50.")
        links[name] = float(number)
    return links
