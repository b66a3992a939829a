"""Where narrow numbers are too coarse: norms, softmaxes, positions and losses are computed in float32 at least."""

import torch
from torch import Tensor


def widened(x: Tensor) -> Tensor:
    """x in float32 where it is narrower; float64 stays as it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
