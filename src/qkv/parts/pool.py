"""Pools: from a stream of tokens to one vector a row. Each is a module `(x [b s d], ctx) -> [b d]`.

Of documents that stand in line, one vector a document: `[1 s d]` gives `[documents d]`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.parts.attention.in_line import InLine
from qkv.parts.context import Context
from qkv.parts.feedforward import Activation
from qkv.parts.spec import Depends


class FirstToken(nn.Module):
    """The first real token of each row: BERT's [CLS]. [devlin2019 §3]"""

    depends_on = Depends()

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if isinstance(ctx.tokens, InLine):
            return ctx.tokens.first_of(x)
        if ctx.tokens.documents is None:
            return x[:, 0]
        first = (ctx.tokens.documents > 0).int().argmax(1)  # [b]
        return x[torch.arange(len(x), device=x.device), first]


class LastToken(nn.Module):
    """The last real token of each row, which alone has seen all the others in a model that looks back only."""

    depends_on = Depends()

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if isinstance(ctx.tokens, InLine):
            return ctx.tokens.last_of(x)
        if ctx.tokens.documents is None:
            return x[:, -1]
        real = ctx.tokens.documents > 0
        last = (real * torch.arange(real.shape[1], device=x.device)).argmax(1)  # [b]
        return x[torch.arange(len(x), device=x.device), last]


class MeanOfTokens(nn.Module):
    """The mean of all real tokens of each row. [reimers2019 §3]"""

    depends_on = Depends()

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if isinstance(ctx.tokens, InLine):
            return ctx.tokens.mean_of(x)
        if ctx.tokens.documents is None:
            return x.mean(1)
        real = (ctx.tokens.documents > 0).to(x.dtype)[..., None]  # [b s 1]
        return (x * real).sum(1) / real.sum(1).clamp(min=1e-9)


class MeanOfPatches(nn.Module):
    """The mean of all tokens after the first `prefix`, which stand for no patch. [dosovitskiy2021 §D.3]"""

    depends_on = Depends("prefix")

    def __init__(self, prefix: int = 0) -> None:
        super().__init__()
        self.prefix = prefix

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return x[:, self.prefix :].mean(1)


class MeanOfFirst(nn.Module):
    """The mean of the first `count` tokens, which all stand for the whole. [gong2021 §2.2]"""

    depends_on = Depends("count")

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return x[:, : self.count].mean(1)


class NormedPool(nn.Module):
    """norm(pool(x)): for a stream that no norm ends. [radford2021 §2.4]"""

    depends_on = Depends("pool", "norm")

    def __init__(self, pool: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.pool, self.norm = pool, norm

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        pooled: Tensor = self.norm(self.pool(x, ctx), ctx)
        return pooled


class DensePool(nn.Module):
    """activation(W pool(x) + b): a pooled vector made ready for a decision."""

    depends_on = Depends("pool", "dense", "activation", "dropout")

    def __init__(self, pool: nn.Module, width: int, activation: Activation, dropout: float = 0.0) -> None:
        super().__init__()
        self.pool, self.activation, self.dropout = pool, activation, nn.Dropout(dropout)
        self.dense = nn.Linear(width, width)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        pooled: Tensor = self.activation(self.dense(self.dropout(self.pool(x, ctx))))
        return pooled


class UnitLength(nn.Module):
    """A pooled vector scaled to length 1, so that a product of two is the cosine of their angle."""

    depends_on = Depends("pool")

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return F.normalize(self.pool(x, ctx), dim=-1)
