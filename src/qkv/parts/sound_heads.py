"""Heads of sound models: stream in, answer out.

Shapes: b rows, n frames, d width, c channels of the features, p width in which frames are compared.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from qkv.parts.context import Context
from qkv.parts.pool import MeanOfTokens
from qkv.parts.quantise import ProductQuantiser
from qkv.parts.spec import Depends


class ProjectedHead(nn.Module):
    """One decision a sound: W₂ mean(W₁ x + b₁) + b₂, the mean over its real frames. [b n d] → [b c]"""

    depends_on = Depends("project", "pool", "out")

    def __init__(self, width: int, inner: int, classes: int) -> None:
        super().__init__()
        self.project, self.pool, self.out = nn.Linear(width, inner), MeanOfTokens(), nn.Linear(inner, classes)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        logits: Tensor = self.out(self.pool(self.project(x), ctx))
        return logits


class Compared(NamedTuple):
    predicted: Tensor  # [b n p]: what the stream says a frame was
    wanted: Tensor  # [b n p]: what it was, quantised
    shares: Tensor  # [b n g v]: of the entries of the codebooks


class ContrastiveHead(nn.Module):
    """What frames were, and what the stream takes them for, in one space. [baevski2020 §3.2]"""

    depends_on = Depends("quantiser", "dropout", "predict", "want")

    def __init__(self, width: int, quantiser: ProductQuantiser, quantised: int, space: int, dropout: float) -> None:
        super().__init__()
        self.quantiser, self.dropout = quantiser, nn.Dropout(dropout)
        self.predict, self.want = nn.Linear(width, space), nn.Linear(quantised, space)

    def forward(self, x: Tensor, features: Tensor) -> Compared:
        """x [b n d], features [b n c]"""
        vectors, shares = self.quantiser(self.dropout(features))
        return Compared(self.predict(x), self.want(vectors), shares)
