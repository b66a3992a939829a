"""What all uses of a model share, whatever it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qkv.errors import QkvError


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


class ModelUse:
    """A model with what it takes to use it."""

    model: Any

    def __repr__(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        head = self.model.head_choice.kind
        return f"{type(self).__name__}({self.model.family}, {head} head, {parameters:,} parameters)"
