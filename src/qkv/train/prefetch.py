"""Batches that are already on their way to the device when the step that needs them begins."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.train.objectives.loss import Batch


class Batches(Protocol):
    """An endless or an epoch-long stream that knows its place.

    Iterating goes on from the current position; when it ends, iterating again begins the next epoch. `state_dict`,
    asked after a batch was handed out, is a JSON value naming the place behind that batch. Shuffling must draw from a
    generator of its own: one batch is fetched ahead, and the global generators belong to the model.

    A stream whose batches can be divided has a method `in_parts(parts)`: from the next iteration on each batch comes as
    so many smaller ones, of which all but the last leave a place whose `part` is not 0. It answers whether they are
    smaller than before. One that can be shared out has `share(rank, ranks)`, and `idle` tells whether the last batch
    handed out stands in for rows that this rank has none of.
    """

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Prefetch:
    """Holds one batch ahead; `position` is the place behind the last batch taken, not behind the one held."""

    def __init__(self, batches: Batches, device: torch.device, part: Callable[[Any], Any] | None = None) -> None:
        """`part` makes of a batch what is wanted of it, before it leaves the host."""
        self.batches = batches
        self._part = part
        self.device = device
        self.position = batches.state_dict()
        self.waited = 0.0  # seconds in which batches were made and nothing else was done
        self._iterator = iter(batches)
        self.idle = False  # whether the last batch taken counts for nothing here
        self._held: Batch | None = None
        self._position_of_held, self._idle_of_held = self.position, False
        # Copies run on their own stream: on the model's they would queue behind the step in flight.
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None

    def take(self) -> Batch:
        """The next batch, on the device."""
        self.fetch()
        batch, self._held = self._held, None
        assert batch is not None
        self.position, self.idle = self._position_of_held, self._idle_of_held
        if self._copies is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self._copies)
            for tensor in _tensors(batch):
                tensor.record_stream(current)  # its memory may be reused only after the step that reads it
        return batch

    @property
    def behind_whole(self) -> bool:
        """Whether the last batch taken was a whole one, or the last part of one."""
        return not self.position.get("part", 0)

    def divide(self, position: dict[str, Any]) -> int | None:
        """Go back to a place and on from there in batches of half the size: in how many parts each now comes.

        None where they cannot be smaller.
        """
        if not hasattr(self.batches, "in_parts"):
            return None
        parts: int = 2 * position.get("parts", 1)
        self.rewind(position)
        smaller = self.batches.in_parts(parts)
        self.position = self.batches.state_dict()
        return parts if smaller else None

    @property
    def next(self) -> Batch:
        """The batch that is taken next, already fetched."""
        self.fetch()
        assert self._held is not None
        return self._held

    def take_waited(self) -> float:
        """The seconds spent on batches since this was last asked."""
        waited, self.waited = self.waited, 0.0
        return waited

    def rewind(self, position: dict[str, Any]) -> None:
        """Go on from another position; the batch that was held is made again when its turn comes."""
        self.batches.load_state_dict(position)
        self.position = self.batches.state_dict()
        self._iterator = iter(self.batches)
        self._held = None

    def fetch(self) -> None:
        """Build the next batch and start its copy; called when a step was launched, while the device is at work."""
        if self._held is not None:
            return
        began = time.perf_counter()
        batch = next(self._iterator, None)
        if batch is None:
            # The first may be the end of an epoch that a resumed run stood at; a second has nothing to give.
            for _ in range(2):
                self._iterator = iter(self.batches)
                batch = next(self._iterator, None)
                if batch is not None:
                    break
            else:
                raise QkvError("There is no batch to train on; the training data must hold at least one example.")
        if self._part is not None:
            batch = self._part(batch)
        self._position_of_held = self.batches.state_dict()
        self._idle_of_held = getattr(self.batches, "idle", False)
        if self._copies is None:
            self._held = batch.to(self.device)
        else:
            with torch.cuda.stream(self._copies):
                self._held = batch.to(self.device)
        # A GPU works on what was launched meanwhile: it waited, and for so long at most, if nothing of that is left.
        if self._copies is None or torch.cuda.current_stream(self.device).query():
            self.waited += time.perf_counter() - began


def _tensors(batch: Any) -> list[Tensor]:
    values = [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    return [value for value in values if isinstance(value, Tensor)]
