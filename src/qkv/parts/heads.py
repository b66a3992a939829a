"""Heads: stream in, answer out. Each is a module `(x [b s d], ctx) -> answer`; most look at nothing but x."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.parts.context import Context
from qkv.parts.embed import TokenEmbedding
from qkv.parts.feedforward import Activation
from qkv.parts.spec import Depends


class LogitFactors(NamedTuple):
    """What logits are made of: x·matrixᵀ + bias."""

    x: Tensor  # [… d]
    matrix: Tensor  # [v d]
    bias: Tensor | None  # [v]

    def product(self) -> Tensor:
        """[… v]"""
        return F.linear(*self)


class TiedHead(nn.Module):
    """Logits by the embedding matrix itself: one matrix serves input and output. [press2017 §3] [vaswani2017 §3.4]

    The embedding stays where it is registered; the head only refers to it, so that it is saved once. `scale` multiplies
    the stream first: T5's published code shrinks it by 1/√width.
    """

    depends_on = Depends("_embedding", bias=None, scale=1.0, in_eight_bits=None)

    def __init__(self, embedding: TokenEmbedding, bias: bool = False, scale: float = 1.0) -> None:
        super().__init__()
        self._embedding = (embedding,)
        self.scale = scale
        self.bias = nn.Parameter(torch.zeros(len(embedding.weight))) if bias else None

    @property
    def weight(self) -> Tensor:
        return self._embedding[0].weight

    def factors(self, x: Tensor) -> LogitFactors:
        """Of a stream. [… d]"""
        return LogitFactors(x if self.scale == 1.0 else x * self.scale, self.weight, self.bias)

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        """[… d] → [… v]"""
        return self.factors(x).product()


class LogitHead(nn.Linear):
    """Logits by a matrix of the head's own, of the stream times `scale`. [… d] → [… v]"""

    depends_on = Depends("weight", bias=None, scale=1.0, in_eight_bits=None, unread=("in_features", "out_features"))

    def __init__(self, width: int, vocabulary: int, bias: bool = False, scale: float = 1.0) -> None:
        super().__init__(width, vocabulary, bias=bias)
        self.scale = scale
        nn.init.xavier_uniform_(self.weight)

    def factors(self, x: Tensor) -> LogitFactors:
        """Of a stream. [… d]"""
        return LogitFactors(x if self.scale == 1.0 else x * self.scale, self.weight, self.bias)

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        return self.factors(x).product()


class States(nn.Module):
    """The stream itself, for those who build on it."""

    depends_on = Depends()

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        return x


class MaskedHead(nn.Module):
    """logits(norm(activation(W x + b))): what a hidden token was. [devlin2019 §3.1]"""

    depends_on = Depends("activation", "dense", "norm", "logits", in_eight_bits=None)

    def __init__(
        self, width: int, inner: int, activation: Activation, norm: nn.Module, logits: TiedHead | LogitHead
    ) -> None:
        super().__init__()
        self.dense, self.activation, self.norm, self.logits = nn.Linear(width, inner), activation, norm, logits

    def factors(self, x: Tensor) -> LogitFactors:
        """Of a stream. [… d]"""
        return self.logits.factors(self.given(x))

    def given(self, x: Tensor) -> Tensor:
        """What the logits are of. [… d]"""
        y: Tensor = self.norm(self.activation(self.dense(x)))
        return y

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        """[… d] → [… v]"""
        y: Tensor = self.logits(self.given(x))  # whatever they are by: some stand for them and have no factors
        return y


# Those whose logits are such a product, for others who would rather not have them all at once.
ENDS_IN_PRODUCT = (TiedHead, LogitHead, MaskedHead)


class PretrainingLogits(NamedTuple):
    masked: Tensor  # [b s v]
    next_sentence: Tensor  # [b 2]: the second segment follows the first, or does not


class PretrainingHead(nn.Module):
    """Both of BERT's questions: what a hidden token was, and whether the segments belong together. [devlin2019 §3.1]

    ALBERT asks in place of the second whether the segments stand in their order or were swapped. [lan2020 §3.1]
    """

    depends_on = Depends("masked", "pool", "dropout", "next_sentence")

    def __init__(self, masked: MaskedHead, pool: nn.Module, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.masked, self.pool, self.dropout = masked, pool, nn.Dropout(dropout)
        self.next_sentence = nn.Linear(width, 2)

    def forward(self, x: Tensor, ctx: Context) -> PretrainingLogits:
        return PretrainingLogits(self.masked(x), self.belonging(x, ctx))

    def belonging(self, x: Tensor, ctx: Context) -> Tensor:
        """The answer to the second question alone. [b s d] → [b 2]"""
        logits: Tensor = self.next_sentence(self.dropout(self.pool(x, ctx)))
        return logits


class PooledStates(NamedTuple):
    states: Tensor  # [b s d]
    pooled: Tensor  # [b d]


class PooledStatesHead(nn.Module):
    """The stream itself, and one vector a row beside it."""

    depends_on = Depends("pool")

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor, ctx: Context) -> PooledStates:
        return PooledStates(x, self.pool(x, ctx))


class ClassificationHead(nn.Module):
    """One decision a row: W dropout(pool(x)) + b. [b s d] → [b c]"""

    depends_on = Depends("pool", "dropout", "out")

    def __init__(self, pool: nn.Module, width: int, classes: int, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        self.pool, self.dropout, self.out = pool, nn.Dropout(dropout), nn.Linear(width, classes, bias=bias)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        logits: Tensor = self.out(self.dropout(self.pool(x, ctx)))
        return logits


class DistilledLogits(NamedTuple):
    by_class: Tensor  # [b c], learned from the labels
    by_teacher: Tensor  # [b c], learned from what a teacher says


class DistilledHead(nn.Module):
    """Two decisions a picture, by the class token and by the distillation token, and their mean. [touvron2021 §4]"""

    depends_on = Depends("out", "teacher_out")

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.out, self.teacher_out = nn.Linear(width, classes), nn.Linear(width, classes)

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        """[b s d] → [b c]"""
        by_class, by_teacher = self.both(x)
        return (by_class + by_teacher) / 2

    def both(self, x: Tensor) -> DistilledLogits:
        """Each by itself, as they are learned."""
        return DistilledLogits(self.out(x[:, 0]), self.teacher_out(x[:, 1]))


class ProjectionHead(nn.Module):
    """W pool(x): one vector a row, in a space that it shares with vectors of another kind. [radford2021 §2.3]"""

    depends_on = Depends("pool", "out")

    def __init__(self, pool: nn.Module, width: int, outputs: int) -> None:
        super().__init__()
        self.pool, self.out = pool, nn.Linear(width, outputs, bias=False)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """[b s d] → [b outputs]"""
        projected: Tensor = self.out(self.pool(x, ctx))
        return projected


class TokenHead(nn.Module):
    """One decision a token: W dropout(x) + b. [… d] → [… c]

    With two classes, the start and the end, it finds the span that answers a question. [devlin2019 §4.2]
    """

    depends_on = Depends("dropout", "out")

    def __init__(self, width: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout, self.out = nn.Dropout(dropout), nn.Linear(width, classes)

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        logits: Tensor = self.out(self.dropout(x))
        return logits


class PatchHead(nn.Module):
    """One decision a patch: W x + b of what stands behind the `prefix`, which is no patch. [b s d] → [b n c]"""

    depends_on = Depends("prefix", "out")

    def __init__(self, width: int, prefix: int, classes: int) -> None:
        super().__init__()
        self.prefix, self.out = prefix, nn.Linear(width, classes)

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        logits: Tensor = self.out(x[:, self.prefix :])
        return logits


class PooledHead(nn.Module):
    """One vector a row, such as the embedding of a sentence. [b s d] → [b d]"""

    depends_on = Depends("pool")

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        pooled: Tensor = self.pool(x, ctx)
        return pooled
