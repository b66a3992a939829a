"""What a training on many GPUs will take of each, before any of them is there; and which layout would be best."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import nn

from qkv.api.choices import DESK, Sizes
from qkv.api.cost import MakeOptimizer, find_device, priced_model, settings_of, typical_step
from qkv.errors import QkvError
from qkv.models.attention_choice import AttentionChoice
from qkv.models.head_choice import HeadChoice
from qkv.train.cost.profile import DeviceProfile
from qkv.train.cost.ranks import Asked, RankCost, RankSteps, cost_on_ranks, rank_steps
from qkv.train.cost.ranks_links import Links
from qkv.train.objectives.expert_losses import with_expert_losses
from qkv.train.optimizers import adamw
from qkv.train.parallel.layout import Layout

PER_NODE = 8


@dataclass
class Plans:
    """Plans of one training for layouts of its ranks; what several of them share is found once."""

    model: nn.Module
    ranks: int
    rows: int  # of the batch that all ranks share
    length: int | None
    target_length: int | None
    common: dict[str, Any]  # of `Asked`
    found: dict[tuple[object, ...], tuple[Asked, RankSteps]] = field(default_factory=dict)

    def cost(self, layout: Layout, recompute: bool) -> RankCost:
        layout = layout.fitted(self.ranks)
        if self.rows < layout.data:
            raise QkvError(
                f"{layout.data} ranks would each see rows of their own, and a batch has {self.rows}: give more rows, "
                "or more ranks to tensor or context."
            )
        rows = -(-self.rows // layout.data)
        key: tuple[object, ...] = (layout.tensor, layout.context, layout.expert, rows, recompute)
        if layout.context > 1 or layout.expert > 1:
            key += (layout.data,)
        if key not in self.found:
            objective, batch = typical_step(self.model, rows, self.length, self.target_length)
            settings = replace(self.common["settings"], recompute=recompute)
            given = {**self.common, "settings": settings, "batch": batch}
            asked = Asked(model=self.model, objective=with_expert_losses(self.model, objective), **given)
            self.found[key] = asked, rank_steps(asked, layout)
        asked, steps = self.found[key]
        return cost_on_ranks(asked, layout, steps)

    def tried(self, layouts: Iterator[Layout], recompute: bool) -> Iterator[RankCost]:
        """Of those that the model and the batch allow."""
        for layout in layouts:
            try:
                yield self.cost(layout, recompute)
            except QkvError:
                continue

    def best(self, recompute: bool) -> list[RankCost]:
        """Of all layouts with a power of two of ranks for each way, those that fit first, the fastest first."""
        found: list[RankCost] = []
        for tensor in _powers(min(self.ranks, self.common["per_node"])):
            for context in _powers(self.ranks // tensor):
                groups = self.ranks // (tensor * context)
                if groups * tensor * context != self.ranks or groups > self.rows:
                    continue
                layouts = (
                    Layout(replicate=replicate, context=context, tensor=tensor)
                    for replicate in _powers(groups)
                    if groups % replicate == 0
                )
                here = list(self.tried(layouts, recompute))
                found += here
                if not here or any(each.fits is not False for each in here):
                    break  # more context ranks would only have more to say to each other
        return sorted(found, key=_rank)

    def fitting(self, layout: Layout, recompute: bool) -> str:
        """The smallest change of a layout that does not fit with which it would."""
        for changed, again in self._changes(layout.fitted(self.ranks), recompute):
            for found in self.tried(iter([changed]), again):
                if found.fits:
                    named = [] if found.layout == str(layout.fitted(self.ranks)) else [f"--parallel {found.layout}"]
                    named += ["--recompute"] if again and not recompute else []
                    return f"{' with '.join(named)} would fit: {found.memory.total / 2**30:.1f} GiB"
        return "no layout of so many ranks was found that would: take more of them, fewer rows or shorter ones"

    def _changes(self, layout: Layout, recompute: bool) -> Iterator[tuple[Layout, bool]]:
        free = replace(layout, shard=0, replicate=1)
        if layout.replicate > 1:
            yield free, recompute
        if not recompute:
            yield layout, True
        for way in ("tensor", "context"):
            for times in (2, 4, 8, 16):
                wider = replace(free, **{way: getattr(layout, way) * times})
                if wider.tensor <= self.common["per_node"]:
                    yield wider, True


def cost_of_ranks(
    model: nn.Module | str,
    sizes: Sizes = DESK,
    *,
    ranks: int,
    parallel: str | Layout = "",
    per_node: int = PER_NODE,
    links: str | Links = "",
    rows: int = 8,
    length: int | None = None,
    target_length: int | None = None,
    head: HeadChoice | None = None,
    attention: AttentionChoice | str | None = None,
    precision: str = "auto",
    device: str | DeviceProfile = "auto",
    steps: int | None = None,
    accumulate: int = 1,
    recompute: bool = False,
    optimizer: MakeOptimizer = partial(adamw, weight_decay=0.1),  # noqa: B008 (never changed)
) -> RankCost:
    """Memory, messages and time of a step on each of so many ranks, which share the `rows` of a batch.

    `parallel` says how they share the work, as for `qkv train`; `links` what joins them, such as
    `within:450,between:50` (GB/s of a GPU). All else is as for `cost`.
    """
    plans = plans_for(
        model, sizes, ranks=ranks, per_node=per_node, links=links, rows=rows, length=length,
        target_length=target_length, head=head, attention=attention, precision=precision, device=device, steps=steps,
        accumulate=accumulate, optimizer=optimizer,
    )  # fmt: skip
    return plans.cost(parallel if isinstance(parallel, Layout) else Layout.parse(parallel), recompute)


def plans_for(
    model: nn.Module | str,
    sizes: Sizes = DESK,
    *,
    ranks: int,
    per_node: int = PER_NODE,
    links: str | Links = "",
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
) -> Plans:
    """Plans of one training, for any layouts of its ranks."""
    if ranks < 2 or per_node < 1:
        raise QkvError("A plan for ranks needs 2 or more of them, and 1 or more on a node.")
    place, profile, name = find_device(device)
    common = {
        "settings": settings_of(steps, precision, accumulate, False, place),
        "place": place,
        "profile": profile,
        "optimizer": optimizer,
        "device": name,
        "links": Links.parse(links) if isinstance(links, str) else links,
        "per_node": per_node,
    }
    network = priced_model(model, sizes, head, attention, length)
    return Plans(network, ranks, rows, length, target_length, common)


def _powers(most: int) -> Iterator[int]:
    number = 1
    while number <= most:
        yield number
        number *= 2


def _rank(found: RankCost) -> tuple[bool, float, int]:
    """Those that fit come first, then the fastest, then the smallest."""
    return found.fits is False, found.seconds or 0.0, found.memory.total
