"""Residual wirings: how a mixer's answer joins the stream. Each wraps a mixer and is itself a step `(x, ctx) -> x`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.parts.context import Context
from qkv.parts.spec import Depends


class PostNorm(nn.Module):
    """norm(x + dropout(mixer(x))): as published. [vaswani2017 §5.4]"""

    depends_on = Depends("mixer", "norm", "dropout")

    def __init__(self, norm: nn.Module, mixer: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.mixer, self.norm, self.dropout = mixer, norm, nn.Dropout(dropout)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return self.norm(x + self.dropout(self.mixer(x, ctx)), ctx)


class PathDropout(nn.Module):
    """Stochastic depth: in training, what a mixer adds to a row is left out whole at this rate. [huang2016 eq.2]

    DIFFERS [huang2016]: what stays is made larger in training, where the paper makes it smaller in evaluation.
    """

    depends_on = Depends(rate=0.0)

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return x
        stays = x.new_empty(len(x), *(1,) * (x.ndim - 1)).bernoulli_(1 - self.rate)  # [b 1 1]
        return x * (stays / (1 - self.rate))

    def extra_repr(self) -> str:
        return f"{self.rate:g}"


def path_dropouts(last: float, layers: int) -> list[float]:
    """The rate of each layer: it grows from layer to layer, up to that of the last. [huang2016 eq.4]

    DIFFERS [huang2016]: the first layer is never left out, as in DeiT's code; in the paper that is the input's.
    """
    return [last * layer / max(layers - 1, 1) for layer in range(layers)]


class PreNorm(nn.Module):
    """x + dropout(mixer(norm(x))): the stream is never normed, so deep stacks need no warm-up. [xiong2020 tab.1]

    `path_dropout` leaves the whole of it out, row by row.
    """

    depends_on = Depends("norm", "mixer", "dropout", "path")

    def __init__(self, norm: nn.Module, mixer: nn.Module, dropout: float = 0.0, *, path_dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.mixer, self.dropout = norm, mixer, nn.Dropout(dropout)
        self.path = PathDropout(path_dropout)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return x + self.branch(x, ctx)

    def branch(self, x: Tensor, ctx: Context) -> Tensor:
        """What is added to the stream."""
        return self.path(self.dropout(self.mixer(self.norm(x, ctx), ctx)))


class Parallel(nn.Module):
    """x + Σ dropout(mixer(norm(x))): all mixers read the same norm, side by side. [wang2021]"""

    depends_on = Depends("norm", "mixers", "dropout")

    def __init__(self, norm: nn.Module, *mixers: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.mixers, self.dropout = norm, nn.ModuleList(mixers), nn.Dropout(dropout)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        normed = self.norm(x, ctx)
        for mixer in self.mixers:
            x = x + self.dropout(mixer(normed, ctx))
        return x


class Admin(nn.Module):
    """norm(x ⊙ ω + dropout(mixer(x))): post-norm whose branches are balanced by a profiled ω. [liu2020 §4.3]"""

    depends_on = Depends("mixer", "norm", "dropout", "omega")

    def __init__(self, norm: nn.Module, mixer: nn.Module, dropout: float = 0.0, *, width: int) -> None:
        super().__init__()
        self.mixer, self.norm, self.dropout = mixer, norm, nn.Dropout(dropout)
        self.omega = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return self.norm(x * self.omega + self.dropout(self.mixer(x, ctx)), ctx)


class ReZero(nn.Module):
    """x + α·dropout(mixer(x)) with α = 0 at first: a stack of any depth begins as the identity. [bachlechner2020 §3]

    No norm anywhere. DIFFERS [bachlechner2020]: each mixer has an α of its own, where the paper's layers share one.
    """

    depends_on = Depends("mixer", "dropout", "alpha")

    def __init__(self, mixer: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.mixer, self.dropout = mixer, nn.Dropout(dropout)
        self.alpha = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return x + self.alpha * self.dropout(self.mixer(x, ctx))


class DeepNorm(nn.Module):
    """norm(α·x + dropout(mixer(x))): post-norm whose stream outweighs its mixers, by depth. [wang2022 fig.2]"""

    depends_on = Depends("mixer", "norm", "dropout", "alpha")

    def __init__(self, norm: nn.Module, mixer: nn.Module, dropout: float = 0.0, *, alpha: float) -> None:
        super().__init__()
        self.mixer, self.norm, self.dropout, self.alpha = mixer, norm, nn.Dropout(dropout), alpha

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return self.norm(self.alpha * x + self.dropout(self.mixer(x, ctx)), ctx)

    def extra_repr(self) -> str:
        return f"alpha {self.alpha:.4g}"
