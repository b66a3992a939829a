"""Steps recorded once for each shape of a batch and replayed: the host then launches one thing, not thousands.

What is recorded is a micro-batch forwards and backwards. Norms, clipping and the optimizer come after it as ever: they
are few launches, made while the device is still at the pass.

The first batch of a kind is trained on plainly, so that programs are compiled; the second too, but from the memory that
a record will read, with everything refused that waits for the device; the third is recorded, and replayed from then on.
No pass is made only to warm up, so nothing is drawn, counted or averaged once more than without records. A replay draws
the same random numbers as the plain pass and moves torch's generator on as far: each operator of a graph finds its
place behind where the generator stands when it is replayed. So a run may be resumed anywhere, and the plain steps with
which it begins anew draw what the recorded ones would have drawn.

A record holds addresses and numbers of the host as they were. Batches are copied to where it reads them, with their
counts as numbers on the device; all else of a batch, and which weights learn, says which record is meant. Weights that
have moved to other memory make records void.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from qkv.parts.recording import captured
from qkv.train.objectives.loss import Loss
from qkv.train.random_state import random_state, set_random_state
from qkv.train.recordable import UNRECORDABLE, no_waiting, why_of
from qkv.train.standing import HostAsks, Number, StandingBatch, kind_of

MOST = 8  # kinds of batches that are recorded at a time: each holds a batch, and all share the memory of the largest
RECENT = 50 * MOST  # batches: a kind that came within so many is not given up for another
KNOWN = 64  # kinds that are remembered

Replay = Callable[[], tuple[Tensor, ...]]


@dataclass
class _Kind:
    """What is known of batches of one kind."""

    seen: int = 0
    last: int = 0  # the batch, counted from the first of all, that was the last of this kind
    refused: bool = False
    standing: StandingBatch | None = None
    count: Number | int = 0
    beside: tuple[str, ...] = ()  # names of what the objective tells besides
    learns: list[nn.Parameter] = field(default_factory=list)  # those that get gradients
    first: Replay | None = None  # gives gradients
    adding: Replay | None = None  # adds to them

    @property
    def recorded(self) -> bool:
        return self.first is not None or self.adding is not None


class RecordedSteps:
    """Losses of micro-batches with their gradients, by records where there are some."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any], Loss],
        device: torch.device,
        say: Callable[[str], None] = print,
    ) -> None:
        """`loss` maps a batch on the device to the objective's answer, at the precision of training."""
        self.model, self.loss, self.device, self.say = model, loss, device, say
        self.parameters = list(model.parameters())
        self._kinds: dict[Hashable, _Kind] = {}
        self._asked: dict[type, set[str]] = {}  # counts that the host decides by, of each class of batches
        # One gradient of each parameter for all records, wherever the optimizer reads it.
        self._gradients: dict[nn.Parameter, Tensor] = {}
        # The share of a loss in the mean. As fine as the host has it: rounded to float32 it is what a division gives.
        self._share = torch.zeros((), dtype=torch.float64, device=device)
        self._shared = 0
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        # Looked up in the modules: one that replaces a table has another there.
        self._held = [
            (held, name)
            for module in model.modules()
            for held in (module._parameters, module._buffers)
            for name, tensor in held.items()
            if tensor is not None
        ]
        self._places: list[int] = []
        self._turn, self._over, self._said = 0, False, False
        self._replays = 0

    def __call__(self, batch: Any, divisor: int | None) -> Loss | None:
        """The loss, when the gradients of loss / divisor are added to those at hand; None: it is to be done plainly.

        The divisor is the loss's own count where None is given.
        """
        kind = None if self._over else self._kind(batch)
        if kind is None or kind.refused or kind.seen == 1:
            return None
        if kind.standing is None:
            return self._rehearsed(kind, batch, divisor)
        if not kind.recorded and not self._make_room():
            return None
        return self._replayed(kind, batch, divisor)

    @property
    def replayed(self) -> float:
        """The share of all micro-batches so far."""
        return self._replays / max(1, self._turn)

    def forget(self) -> bool:
        """Give up all records and their memory, and make no more; says whether there were any."""
        had = self._drop_all()
        self._over = True
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return had

    def _kind(self, batch: Any) -> _Kind | None:
        self._turn += 1
        learning = [parameter.requires_grad for parameter in self.parameters]
        try:
            key = (kind_of(batch, self._asked.get(type(batch), ())), self.model.training, *learning)
            kind = self._kinds.pop(key, None) or _Kind()
        except TypeError as error:  # something that is neither a number nor a name
            self._refuse(str(error))
            self._over = True
            return None
        self._kinds[key] = kind  # behind all others
        kind.seen, kind.last = kind.seen + 1, self._turn
        if len(self._kinds) > KNOWN:
            old = next(iter(self._kinds))
            if not self._kinds.pop(old).recorded and not any(each.seen > 1 for each in self._kinds.values()):
                self._refuse(f"of {self._turn} batches no two are of one kind")
        return kind

    def _rehearsed(self, kind: _Kind, batch: Any, divisor: int | None) -> Loss | None:
        """A plain pass over the memory that a record will read, in which nothing may wait for the device."""
        before, buffers = random_state(), [buffer.clone() for buffer in self.model.buffers()]
        gradients = [parameter.grad for parameter in self.parameters]
        self._set_gradients([None] * len(gradients))
        try:
            kind.standing = StandingBatch(batch, self._asked.get(type(batch), ()))
            with no_waiting(self.device):
                kind.standing.fill(batch)
                loss = self.loss(kind.standing.batch)
                count: Any = loss.count  # one of the batch's, which is a tensor there
                if isinstance(count, Tensor) and not isinstance(count, Number):
                    raise RuntimeError("how much a loss counts is known to the device alone")
                kind.count, kind.beside = count, tuple(loss.beside)
                self._back(loss, self._counted(kind, batch), divisor)
        except UNRECORDABLE as error:  # whatever it was: the plain pass that follows says it again if it is ours
            self._set_gradients(gradients)
            set_random_state(before)
            for buffer, was in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(was)
            kind.standing = None
            if isinstance(error, torch.OutOfMemoryError):
                raise
            self._decline(kind, batch, error)
            return None
        kind.learns = [parameter for parameter in self.parameters if parameter.grad is not None]
        self._add_to(gradients)
        after = random_state()
        if any(after[name] != before[name] for name in ("python", "numpy", "torch") if self._draws_apart(name)):
            kind.refused = True
            self._refuse("random numbers are drawn on the host")
        beside = {name: value.detach() for name, value in loss.beside.items()}
        return Loss(loss.total.detach(), self._counted(kind, batch), beside)

    def _replayed(self, kind: _Kind, batch: Any, divisor: int | None) -> Loss | None:
        assert kind.standing is not None
        if self._moved():
            self._drop_all()
        begun = any(parameter.grad is not None for parameter in kind.learns)
        # The gradients of the first record are those that all others add to. It need not add, which saves to clear
        # them and to read them again: memory is what a GPU waits for there.
        first = not begun and (kind.first is not None or not self._gradients)
        if not first:
            self._attach(kind.learns)
        kind.standing.fill(batch)
        count = self._counted(kind, batch)
        self._set_share(count if divisor is None else divisor)
        try:
            if first and kind.first is None:
                kind.first = captured(lambda: self._work(kind, give=True), self.device, self._pool)
            elif not first and kind.adding is None:
                kind.adding = captured(lambda: self._work(kind, give=False), self.device, self._pool)
        except UNRECORDABLE as error:
            if first:
                for parameter in kind.learns:
                    parameter.grad = None
            self._refuse(why_of(error))
            self.forget()  # what torch knows of graphs and memory may be out of order
            return None
        replay = kind.first if first else kind.adding
        assert replay is not None
        total, *rest = replay()
        self._replays += 1
        if first:
            for parameter, gradient in zip(kind.learns, rest[len(kind.beside) :], strict=True):
                parameter.grad = self._gradients[parameter] = gradient
        # Copied, for the next replay writes over them.
        beside = {name: value.clone() for name, value in zip(kind.beside, rest, strict=False)}
        return Loss(total.clone(), count, beside)

    def _work(self, kind: _Kind, *, give: bool) -> tuple[Tensor, ...]:
        """What is recorded; the gradients are given where none are at hand to be added to."""
        assert kind.standing is not None
        loss = self.loss(kind.standing.batch)
        loss.total.backward(self._share.to(loss.total.dtype))
        told = (loss.total.detach(), *(value.detach() for value in loss.beside.values()))
        if not give:
            return told
        gradients = tuple(parameter.grad for parameter in kind.learns if parameter.grad is not None)
        assert len(gradients) == len(kind.learns)
        return told + gradients

    def _back(self, loss: Loss, count: int, divisor: int | None) -> None:
        self._set_share(count if divisor is None else divisor)
        loss.total.backward(self._share.to(loss.total.dtype))

    def _set_share(self, divisor: int) -> None:
        if self._shared != max(1, divisor):
            self._shared = max(1, divisor)
            self._share.fill_(1 / self._shared)

    def _counted(self, kind: _Kind, batch: Any) -> int:
        count: int = getattr(batch, kind.count.called) if isinstance(kind.count, Number) else kind.count
        return count

    def _attach(self, parameters: list[nn.Parameter]) -> None:
        """Have gradients stand where records add to them: none as 0, and those of plain passes with what they have."""
        empty = []
        for parameter in parameters:
            if parameter not in self._gradients:
                self._gradients[parameter] = torch.zeros_like(parameter)
            buffer = self._gradients[parameter]
            if parameter.grad is None:
                empty.append(buffer)
            elif parameter.grad is not buffer:
                buffer.copy_(parameter.grad)
            parameter.grad = buffer
        if empty:
            torch._foreach_zero_(empty)

    def _set_gradients(self, gradients: list[Tensor | None]) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient

    @torch.no_grad()
    def _add_to(self, gradients: list[Tensor | None]) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)

    def _moved(self) -> bool:
        """Whether weights or tables lie elsewhere than when something was last recorded."""
        places = [held[name].data_ptr() for held, name in self._held]  # type: ignore[union-attr]
        moved = bool(self._places) and places != self._places
        self._places = places
        return moved

    def _make_room(self) -> bool:
        kept = [kind for kind in self._kinds.values() if kind.recorded]
        if len(kept) < MOST:
            return True
        oldest = min(kept, key=lambda kind: kind.last)
        if self._turn - oldest.last < RECENT:
            return False
        oldest.first = oldest.adding = None
        return True

    def _drop_all(self) -> bool:
        had = any(kind.recorded for kind in self._kinds.values())
        for kind in self._kinds.values():
            kind.first = kind.adding = None
        self._gradients = {}
        return had

    def _draws_apart(self, name: str) -> bool:
        return name != "torch" or self.device.type == "cuda"  # on a CPU it is the device's own

    def _decline(self, kind: _Kind, batch: Any, error: Exception) -> None:
        if isinstance(error, HostAsks):  # then batches of one kind have this number in common, too
            self._asked.setdefault(type(batch), set()).add(error.name)
            return
        kind.refused = True
        self._refuse(why_of(error))

    def _refuse(self, why: str) -> None:
        if not self._said:
            self.say(f"Steps are not recorded where {why}: these are trained on plainly.")
        self._said = True
