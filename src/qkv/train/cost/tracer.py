"""Follows a step: what its operators cost, and which memory is held when."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from qkv.train.cost.operators import Work, work_of
from qkv.train.cost.shaped import ShapesOnly

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
GRAIN = 512  # bytes: torch's allocator of a GPU hands out multiples of it


@dataclass
class Held:
    """One stretch of memory."""

    bytes: int
    phase: str | None  # in which it was taken; None: before the step
    freed_in: str | None = None
    owner: str = ""  # "weights", "gradients" or "optimizer", where it is one's own


@dataclass
class Trace:
    """All that a step did."""

    works: Counter[tuple[str, Work]] = field(default_factory=Counter)  # (phase, what) -> how often
    held: dict[int, Held] = field(default_factory=dict)
    events: list[tuple[int, bool]] = field(default_factory=list)  # memory by number: taken, or given back
    brief: list[tuple[int, int]] = field(default_factory=list)  # (at which event, bytes held while one operator ran)


class Tracer(ShapesOnly):
    """Counts operators and memory while it is on, phase by phase."""

    def __init__(self, place: torch.device, workspace: Any = None) -> None:
        """`workspace` maps a `Work` to the bytes that its kernel takes for itself while it runs."""
        super().__init__(place)
        self.trace = Trace()
        self.phase: str | None = None
        self.workspace = workspace
        self._numbers: dict[int, int] = {}  # address of a storage -> number
        self._grain = GRAIN if place.type == "cuda" else 1

    def ran(self, operator: Any, given: Any, named: Any, made: Any) -> None:
        self.follow(made)
        if self.phase is None:
            return
        work = work_of(operator, given, named, made)
        self.note(work)

    def note(self, work: Work) -> None:
        if self.phase is None:
            return
        self.trace.works[self.phase, work] += 1
        taken = 0 if self.workspace is None else self.workspace(work)
        if taken:
            self.trace.brief.append((len(self.trace.events), taken))

    def follow(self, values: Any) -> None:
        """Hear of the memory behind tensors, now and when it is given back."""
        for value in tree_leaves(values):
            if isinstance(value, Tensor):
                self._hear_of(getattr(value, "body", value))

    def _hear_of(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._numbers or not storage.nbytes():
            return
        number = len(self.trace.held)
        self._numbers[address] = number
        size = -(-storage.nbytes() // self._grain) * self._grain
        self.trace.held[number] = Held(size, self.phase)
        self.trace.events.append((number, True))
        weakref.finalize(storage, self._given_back, address, number)

    def _given_back(self, address: int, number: int) -> None:
        self._numbers.pop(address, None)
        self.trace.events.append((number, False))
        self.trace.held[number].freed_in = self.phase

    def own(self, tensors: Iterable[Tensor | None], owner: str) -> None:
        """Say whose the memory of some tensors is."""
        for tensor in tensors:
            if tensor is None:
                continue
            self.follow(tensor)
            number = self._numbers.get(getattr(tensor, "body", tensor).untyped_storage()._cdata)
            if number is not None and not self.trace.held[number].owner:
                self.trace.held[number].owner = owner

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before
