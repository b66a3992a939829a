"""Heads: stream in, answer out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.parts.embed import TokenEmbedding


class TiedHead(nn.Module):
    """Logits by the embedding matrix itself: one matrix serves input and output. [press2017 §3] [vaswani2017 §3.4]

    The embedding stays where it is registered; the head only refers to it, so that it is saved once.
    """

    def __init__(self, embedding: TokenEmbedding, bias: bool = False) -> None:
        super().__init__()
        self._embedding = (embedding,)
        self.bias = nn.Parameter(torch.zeros(len(embedding.weight))) if bias else None

    @property
    def weight(self) -> Tensor:
        return self._embedding[0].weight

    def forward(self, x: Tensor) -> Tensor:
        """[… d] → [… v]"""
        return F.linear(x, self.weight, self.bias)


class LogitHead(nn.Linear):
    """Logits by a matrix of the head's own. [… d] → [… v]"""

    def __init__(self, width: int, vocabulary: int, bias: bool = False) -> None:
        super().__init__(width, vocabulary, bias=bias)
        nn.init.xavier_uniform_(self.weight)
