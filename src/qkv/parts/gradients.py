"""Gradients that go back smaller than they came."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float) -> Tensor:
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.share, None


def scale_gradient(x: Tensor, share: float) -> Tensor:
    """x itself, through which only a share of the gradient goes back: what made it learns more slowly."""
    if share == 1.0:
        return x
    scaled: Tensor = _Scaled.apply(x, share)
    return scaled
