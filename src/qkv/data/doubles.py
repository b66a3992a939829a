"""Double precision, which not every device has."""

from __future__ import annotations

from torch import Tensor

HAVE_IT = ("cpu", "cuda", "meta")


def doubled(x: Tensor) -> Tensor:
    """x in double precision: where it is, or on the CPU, where its device may have none."""
    return (x if x.device.type in HAVE_IT else x.cpu()).double()
