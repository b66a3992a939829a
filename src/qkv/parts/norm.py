"""Norms: keep the stream at one scale. Each takes `(x [b s d], ctx)`; most look at nothing but x."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.parts.context import Context
from qkv.parts.precision import widened
from qkv.parts.spec import Depends


class LayerNorm(nn.LayerNorm):
    """Mean 0 and variance 1 over the width of each token, then a learned scale and shift. [ba2016 eq.4]"""

    depends_on = Depends("weight", "eps", bias=None, unread=("normalized_shape", "elementwise_affine"))

    def __init__(self, width: int, epsilon: float = 1e-5, bias: bool = True) -> None:
        super().__init__(width, eps=epsilon, bias=bias)

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        return super().forward(x)


class RMSNorm(nn.Module):
    """Root mean square 1 over the width of each token, then a learned scale. [zhang2019 eq.4]"""

    depends_on = Depends("weight", "epsilon")

    def __init__(self, width: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        wide = widened(x)
        return F.rms_norm(wide, self.weight.shape, self.weight.to(wide.dtype), self.epsilon).to(x.dtype)


def numbers_of(norm: LayerNorm | RMSNorm) -> tuple[Tensor, Tensor | None, float, bool]:
    """gain, shift, epsilon, and whether no mean is taken off."""
    if isinstance(norm, RMSNorm):
        return norm.weight, None, norm.epsilon, True
    return norm.weight, norm.bias, norm.eps, False


class SequenceBatchNorm(nn.Module):
    """Mean 0 and variance 1 of each feature over all real tokens of the batch. [ioffe2015 alg.1]

    What layer norm is contrasted with: its statistics depend on the other rows, and with text they vary so much from
    batch to batch that the running averages used at evaluation no longer fit. [shen2020 §3]
    """

    depends_on = Depends("weight", "bias", "epsilon", "momentum", "running_mean", "running_variance")

    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, width: int, epsilon: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.epsilon, self.momentum = epsilon, momentum
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_variance", torch.ones(width))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        mean, variance = self.running_mean, self.running_variance
        documents = ctx.tokens.documents
        if self.training and (documents is None or bool((documents > 0).any())):  # padding alone has no statistics
            real = widened(x if documents is None else x[documents > 0]).reshape(-1, x.shape[-1])  # [tokens d]
            mean, variance = real.mean(0), real.var(0, unbiased=False)
            with torch.no_grad():
                unbiased = variance * len(real) / max(len(real) - 1, 1)
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
                self.running_variance.lerp_(unbiased.to(self.running_variance.dtype), self.momentum)
        y = (widened(x) - mean) * torch.rsqrt(variance + self.epsilon)
        return (y * self.weight + self.bias).to(x.dtype)
