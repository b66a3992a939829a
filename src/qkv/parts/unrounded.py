"""Tables whose numbers are never narrowed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from qkv.data.doubles import HAVE_IT


class Unrounded(nn.Module):
    """Its numbers follow the model to a device but never to a narrower type: a rounded rate is a wrong position.

    Those in double precision stay on the CPU where a device may have none.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Unrounded:
        exact, self._buffers = self._buffers, {}
        super()._apply(fn, recurse)
        place = fn(torch.empty(0)).device
        for name, numbers in exact.items():
            stays = numbers is None or (numbers.dtype == torch.float64 and place.type not in HAVE_IT)
            self._buffers[name] = numbers if stays or numbers is None else numbers.to(place)
        return self
