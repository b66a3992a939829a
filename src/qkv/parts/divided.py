"""Tensors of which each rank holds a part."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_divided(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether ranks hold parts of a tensor. What makes such tensors takes long to load: where it is not, none is."""
    maker = sys.modules.get("torch.distributed.tensor")
    return maker is not None and isinstance(tensor, maker.DTensor)
