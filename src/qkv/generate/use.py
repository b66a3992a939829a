"""What all uses of a model share, whatever it reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from qkv.data.ahead import prefetched
from qkv.errors import QkvError
from qkv.parts.cpu_maps import quick_maps
from qkv.parts.modes import answering

Name = TypeVar("Name")
Given = TypeVar("Given")

AHEAD = 2  # batches that are made, and asked about, before the answers to the first are looked at


class Watch:
    """Answers that are no number, seen as they leave a model. Where weights are damaged every answer is NaN, of which a
    label or a box could still be made.

    On a GPU looking at once would make it wait for each batch: there what was seen is noted, and looked at later.
    """

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def look(self, answer: Any) -> None:
        if isinstance(answer, tuple):
            for part in answer:
                self.look(part)
        elif isinstance(answer, Tensor):
            self.seen.append(answer.isnan().any())
            if not answer.is_cuda:
                refuse_nan(self.taken())

    def taken(self) -> list[Tensor]:
        """What was seen since the last time, for someone else to look at."""
        seen, self.seen = self.seen, []
        return seen


def refuse_nan(seen: Iterable[Tensor]) -> None:
    if any(map(bool, seen)):
        raise QkvError("The model answers NaN: its weights are damaged or too large.")


@contextmanager
def at_rest(model: nn.Module) -> Iterator[Watch]:
    """The model without dropout and gradients; it is given back as it was. An answer that is no number is an error."""
    watch = Watch()
    watched = model.register_forward_hook(lambda _, given, answer: watch.look(answer))
    try:
        with answering(model), torch.inference_mode(), quick_maps(model):
            yield watch
            refuse_nan(watch.taken())
    finally:
        watched.remove()


class OnItsWay:
    """What a model answered, on its way to the CPU while the device goes on with what comes next."""

    def __init__(self, output: Any, seen: list[Tensor]) -> None:
        self._parts = each_tensor((output, *seen), lambda part: part.to("cpu", non_blocking=part.is_cuda))
        self._copied: torch.cuda.Event | None = None
        if any(tensor.is_cuda for tensor in (*_tensors(output), *seen)):
            self._copied = torch.cuda.Event()
            self._copied.record()

    def arrived(self) -> Any:
        """The answer, once it is here: at least as precise as single precision."""
        if self._copied is not None:
            self._copied.synchronize()
        output, *seen = self._parts
        refuse_nan(seen)
        return each_tensor(output, lambda part: part.float() if part.is_floating_point() else part)


def each_tensor(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """An answer of the same form, changed tensor by tensor; tuples are taken apart."""
    if isinstance(output, tuple):
        parts = (each_tensor(part, change) for part in output)
        return type(output)(*parts) if hasattr(output, "_fields") else tuple(parts)
    return change(output)


def _tensors(output: Any) -> list[Tensor]:
    return [tensor for part in output for tensor in _tensors(part)] if isinstance(output, tuple) else [output]


def answered(
    model: nn.Module,
    batches: Iterable[tuple[Iterable[Name], Given]],
    ask: Callable[[Given], Any],
    rows: Callable[[Any, Given], Iterable[Any]],
) -> Iterator[tuple[Name, Any]]:
    """Each thing's name with the model's answer about it, batch after batch; only a few batches are held at a time.

    `ask` gives a batch to the model, `rows` makes of what it said, on the CPU, an answer for each thing. Where the
    model is on a GPU, neither it nor the host waits for the other: batches are made in the background, and answers
    fetched while the next ones are computed.
    """
    apart = next(model.parameters()).is_cuda
    waiting: deque[tuple[Iterable[Name], Given, OnItsWay]] = deque()

    def oldest() -> Iterator[tuple[Name, Any]]:
        names, batch, answer = waiting.popleft()
        yield from zip(names, rows(answer.arrived(), batch), strict=True)

    with at_rest(model) as watch:
        for names, batch in prefetched(batches, AHEAD) if apart else batches:
            waiting.append((names, batch, OnItsWay(ask(batch), watch.taken())))
            if len(waiting) > (AHEAD if apart else 0):
                yield from oldest()
        while waiting:
            yield from oldest()


def row_of(output: Any, number: int) -> Any:
    """What was said of one row; tuples are taken apart."""
    return each_tensor(output, lambda part: part[number])


class ModelUse:
    """A model with what it takes to use it."""

    model: Any
    kinds: ClassVar[tuple[str, ...]]  # the heads it is for, where it is for some

    def check_head(self, model: Any) -> None:
        if model.head_choice.kind not in self.kinds:
            wanted = " or ".join(self.kinds)
            raise QkvError(f"This needs a model with a {wanted} head, but it has a {model.head_choice.kind} head.")

    def explain(self) -> str:
        """Who computes what of this model here, what faster ways did not understand, and what runs instead."""
        from qkv.generate.explain import explain  # with all ways, of which most are not for this model

        return explain(self.model)

    def __repr__(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        head = self.model.head_choice.kind
        return f"{type(self).__name__}({self.model.family}, {head} head, {parameters:,} parameters)"
