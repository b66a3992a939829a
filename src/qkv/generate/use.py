"""What all uses of a model share, whatever it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """The model without dropout and gradients; it is given back as it was."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)


class ModelUse:
    """A model with what it takes to use it."""

    model: Any

    def __repr__(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        head = self.model.head_choice.kind
        return f"{type(self).__name__}({self.model.family}, {head} head, {parameters:,} parameters)"
