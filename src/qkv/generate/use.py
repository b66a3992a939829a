"""What all uses of a model share, whatever it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from qkv.errors import QkvError

Name = TypeVar("Name")
Given = TypeVar("Given")


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """The model without dropout and gradients; it is given back as it was. An answer that is no number is an error."""
    training = model.training
    model.eval()
    watched = model.register_forward_hook(lambda _, given, answer: refuse_nan(answer))
    try:
        with torch.inference_mode():
            yield
    finally:
        watched.remove()
        model.train(training)


def refuse_nan(answer: Any) -> None:
    """Where weights are damaged every answer is NaN, of which a label or a box could still be made."""
    if isinstance(answer, tuple):
        for part in answer:
            refuse_nan(part)
    elif isinstance(answer, Tensor) and bool(answer.isnan().any()):
        raise QkvError("The model answers NaN: its weights are damaged or too large.")


def answered(
    model: nn.Module, batches: Iterable[tuple[Iterable[Name], Given]], answer: Callable[[Given], Iterable[Any]]
) -> Iterator[tuple[Name, Any]]:
    """Each thing's name with the model's answer about it, batch after batch; only one batch is held at a time."""
    with at_rest(model):
        for names, batch in batches:
            yield from zip(names, answer(batch), strict=True)


def row_of(output: Any, number: int) -> Any:
    """What the head says of one row, on the CPU; tuples are taken apart."""
    if isinstance(output, tuple):
        return type(output)(*(row_of(part, number) for part in output))
    return output[number].float().cpu()


class ModelUse:
    """A model with what it takes to use it."""

    model: Any
    kinds: ClassVar[tuple[str, ...]]  # the heads it is for, where it is for some

    def check_head(self, model: Any) -> None:
        if model.head_choice.kind not in self.kinds:
            wanted = " or ".join(self.kinds)
            raise QkvError(f"This needs a model with a {wanted} head, but it has a {model.head_choice.kind} head.")

    def __repr__(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        head = self.model.head_choice.kind
        return f"{type(self).__name__}({self.model.family}, {head} head, {parameters:,} parameters)"
