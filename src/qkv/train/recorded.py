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
counts as numbers on the device; all else of a batch, the numbers of the objective, which weights learn, and which parts
are in training, say which record is meant. Weights that have moved to other memory make records void. And while
somebody watches who did not when training began, steps are plain: a record would call nobody.

Records keep the memory that a pass takes, which plain steps give back between two passes. They are made only where a
plain pass still finds room beside them: so does whatever else a run does, and where it does not, they are given up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from qkv.parts.recording import captured
from qkv.train.kinds import Kind, Kinds, Replay
from qkv.train.objectives.loss import Loss
from qkv.train.random_state import random_state, set_random_state
from qkv.train.recordable import UNRECORDABLE, Watchers, no_waiting, numbers_of, parts_of, why_of
from qkv.train.standing import HostAsks, Number, StandingBatch

TRIES = 8  # kinds that may be refused, each at the cost of a pass, until no more are tried
NO_ROOM = "The device has too little memory for records of steps: from here on these are trained on plainly."


class RecordedSteps:
    """Losses of micro-batches with their gradients, by records where there are some."""

    def __init__(
        self,
        model: nn.Module,
        objective: Any,
        loss: Callable[[Any], Loss],
        device: torch.device,
        say: Callable[[str], None] = print,
        *,
        asked: bool = True,
    ) -> None:
        """`loss` maps a batch on the device to the objective's answer, at the precision of training. Where nobody
        `asked` for records, it is not said why there are none."""
        self.model, self.objective, self.loss, self.device = model, objective, loss, device
        self.say, self.asked = say, asked
        self.parameters = list(model.parameters())
        self.kinds = Kinds()
        self.why_plain: str | None = None  # the first reason for which something is not recorded
        self.steps_aside = False  # for evaluations, which need the memory
        # One gradient of each parameter for all records, wherever the optimizer reads it.
        self._gradients: dict[nn.Parameter, Tensor] = {}
        # The share of a loss in the mean. As fine as the host has it: rounded to float32 it is what a division gives.
        self._share = torch.zeros((), dtype=torch.float64, device=device)
        self._shared = 0
        self._pool: Any = None
        self._held_bytes = 0  # by the pool
        # Looked up in the modules, those of a teacher too: one that replaces a table has another there.
        self._modules = [module for module in parts_of(model, objective) if isinstance(module, nn.Module)]
        self._held = [
            (held, name) for module in self._modules for held in (module._parameters, module._buffers) for name in held
        ]
        self._watchers = Watchers(self._modules, self.parameters)
        self._places: list[int] = []
        self._over = False
        self._tries = TRIES
        self._replays = self._passes = 0

    def __call__(self, batch: Any, divisor: int | None) -> Loss | None:
        """The loss, when the gradients of loss / divisor are added to those at hand; None: it is to be done plainly.

        The divisor is the loss's own count where None is given.
        """
        self._passes += 1
        kind = None if self._over or (not self.asked and self._watchers) else self._kind(batch)
        if kind is None or kind.refused or kind.seen == 1:
            return None
        if kind.standing is None:
            worth_it = self._tries > 0 and self.kinds.have_room()
            return self._rehearsed(kind, batch, divisor) if worth_it else None
        if not kind.recorded and not self.kinds.make_room():
            return None
        return self._replayed(kind, batch, divisor)

    def figures(self) -> dict[str, Any]:
        """For the run's records: the share of all micro-batches so far that were replayed, and why some were not."""
        why = {} if self.why_plain is None else {"plain_because": self.why_plain}
        return {"replayed": self._replays / max(1, self._passes), **why}

    @property
    def holds_memory(self) -> bool:
        return bool(self.kinds.recorded)

    def drop(self) -> bool:
        """Give up all records and their memory until they are made anew; says whether there were any."""
        had = self.kinds.drop()
        self._gradients, self._pool, self._held_bytes = {}, None, 0
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return had

    def forget(self) -> bool:
        """The same, and make no more."""
        self._over = True
        return self.drop()

    def _kind(self, batch: Any) -> Kind | None:
        learning = [parameter.requires_grad for parameter in self.parameters]
        training = [module.training for module in self._modules]
        try:
            kind = self.kinds.of(batch, numbers_of(self.objective), *learning, *training)
        except TypeError as error:  # something that is neither a number nor a name
            self._refuse(str(error))
            self._over = True
            return None
        if self.kinds.all_differ:
            self._refuse(f"of {self.kinds.turn} batches no two are of one kind")
        return kind

    def _rehearsed(self, kind: Kind, batch: Any, divisor: int | None) -> Loss | None:
        """A plain pass over the memory that a record will read, in which nothing may wait for the device."""
        before = random_state()
        buffers = [(each, each.clone()) for module in self._modules for each in module.buffers(recurse=False)]
        gradients = [parameter.grad for parameter in self.parameters]
        self._set_gradients([None] * len(gradients))
        try:
            with no_waiting(self.device):
                kind.standing = StandingBatch(batch, self.kinds.asked(batch))
                kind.standing.fill(batch)
                loss = self.loss(kind.standing.batch)
                count: Any = loss.count  # one of the batch's, which is a tensor there
                if isinstance(count, Tensor) and not isinstance(count, Number):
                    raise RuntimeError("how much a loss counts is known to the device alone")
                kind.count, kind.beside = count, tuple(loss.beside)
                self._set_share(kind.counted(batch) if divisor is None else divisor)
                beside = {name: value.detach() for name, value in loss.beside.items()}
                loss.total.backward(self._share.to(loss.total.dtype))
        except UNRECORDABLE as error:  # whatever it was: the plain pass that follows says it again if it is ours
            self._set_gradients(gradients)
            set_random_state(before)
            for buffer, was in buffers:
                buffer.copy_(was)
            kind.standing = None
            self._decline(kind, batch, error)
            return None
        kind.learns = [parameter for parameter in self.parameters if parameter.grad is not None]
        self._add_to(gradients)
        after = random_state()
        if any(after[name] != before[name] for name in ("python", "numpy", "torch") if self._draws_apart(name)):
            kind.refused = True
            self._refuse("random numbers are drawn on the host")
        return Loss(loss.total.detach(), kind.counted(batch), beside)

    def _replayed(self, kind: Kind, batch: Any, divisor: int | None) -> Loss | None:
        assert kind.standing is not None
        if self._moved():
            self.drop()
        begun = any(parameter.grad is not None for parameter in kind.learns)
        # The gradients of the first record are those that all others add to. It need not add, which saves to clear
        # them and to read them again: memory is what a GPU waits for there.
        first = not begun and (kind.first is not None or not self._gradients)
        replay = kind.first if first else kind.adding
        before = random_state() if replay is None else None
        try:
            if not first:
                self._attach(kind.learns)
            kind.standing.fill(batch)
            count = kind.counted(batch)
            self._set_share(count if divisor is None else divisor)
            if replay is None:
                replay = self._captured(kind, give=first)
            total, *rest = replay()
        except UNRECORDABLE as error:  # as above; a record is done whole or not at all
            if first:
                for parameter in kind.learns:
                    parameter.grad = None
            if before is not None:
                set_random_state(before)
            # What torch knows of graphs and memory may be out of order.
            self._give_up(error)
            return None
        if first:
            kind.first = replay
        else:
            kind.adding = replay
        self._replays += 1
        if first:
            for parameter, gradient in zip(kind.learns, rest[len(kind.beside) :], strict=True):
                parameter.grad = self._gradients[parameter] = gradient
        # Copied, for the next replay writes over them.
        beside = {name: value.clone() for name, value in zip(kind.beside, rest, strict=False)}
        return Loss(total.clone(), count, beside)

    def _captured(self, kind: Kind, *, give: bool) -> Replay:
        """A record, if it leaves as much memory free as all of them hold: that is what a plain pass may take."""
        if self.device.type != "cuda":
            return captured(lambda: self._work(kind, give=give), self.device)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(self.device)
        replay = captured(lambda: self._work(kind, give=give), self.device, self._pool)
        self._held_bytes += torch.cuda.memory_reserved(self.device) - before
        free, _ = torch.cuda.mem_get_info(self.device)
        if free < self._held_bytes:
            del replay  # which the error would hold on to
            raise torch.OutOfMemoryError(NO_ROOM)
        return replay

    def _work(self, kind: Kind, *, give: bool) -> tuple[Tensor, ...]:
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

    def _set_share(self, divisor: int) -> None:
        if self._shared != max(1, divisor):
            self._shared = max(1, divisor)
            self._share.fill_(1 / self._shared)

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
        tensors = [held.get(name) for held, name in self._held]
        places = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        moved = bool(self._places) and places != self._places
        self._places = places
        return moved

    def _draws_apart(self, name: str) -> bool:
        return name != "torch" or self.device.type == "cuda"  # on a CPU it is the device's own

    def _decline(self, kind: Kind, batch: Any, error: Exception) -> None:
        if isinstance(error, HostAsks):
            self.kinds.asked(batch).add(error.name)
        elif isinstance(error, torch.OutOfMemoryError):
            self._give_up(error)
        else:
            kind.refused = True
            self._tries -= 1
            self._refuse(why_of(error))

    def _give_up(self, error: Exception) -> None:
        """Go on without records."""
        self.forget()
        if isinstance(error, torch.OutOfMemoryError):
            self.why_plain = self.why_plain or "the device has too little memory"
            self.say(NO_ROOM)
        else:
            self._refuse(why_of(error))

    def _refuse(self, why: str) -> None:
        if self.asked and self.why_plain is None:
            self.say(f"Steps are not recorded where {why}: these are trained on plainly.")
        self.why_plain = self.why_plain or why
