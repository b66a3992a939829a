"""Tables whose numbers are never narrowed."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


class Unrounded(nn.Module):
    """Its numbers follow the model to a device but never to a narrower type: a rounded rate is a wrong position."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Unrounded:
        exact = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)
        for name, numbers in exact.items():
            setattr(self, name, numbers.to(getattr(self, name).device))
        return self
