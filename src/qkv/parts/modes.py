"""Whether parts learn or answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def answering(model: nn.Module) -> Iterator[None]:
    """Inside, no part of a model learns; afterwards each does what it did. Costs next to nothing where none learns."""
    learning = [part for part in model.modules() if part.training]
    for part in learning:
        part.training = False
    try:
        yield
    finally:
        for part in learning:
            part.training = True
