"""Embeddings: ids in, stream out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.context import Context


class TokenEmbedding(nn.Module):
    """One learned vector an id, times `scale` (√width in the 2017 Transformer). [vaswani2017 §3.4]"""

    def __init__(self, vocabulary: int, width: int, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(torch.randn(vocabulary, width) * width**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """[b s] → [b s d]"""
        x = F.embedding(ids, self.weight)
        return x if self.scale == 1.0 else x * self.scale


class Embed(nn.Module):
    """dropout(token + position): how a stream starts. [vaswani2017 §5.4]"""

    def __init__(self, tokens: TokenEmbedding, position: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens, self.position, self.dropout = tokens, position, nn.Dropout(dropout)

    def forward(self, ids: Tensor, ctx: Context) -> Tensor:
        longest = ctx.tokens.start + ctx.tokens.size
        return self.dropout(self.tokens(ids) + self.position(ctx.position_ids(ids.device), longest))


def check_ids(ids: Tensor, vocabulary: int) -> None:
    """An id out of range is a clear error here and an obscure one, or a wrong answer, anywhere later."""
    if ids.numel() and not (0 <= int(ids.min()) and int(ids.max()) < vocabulary):
        raise QkvError(f"Token ids lie between {int(ids.min())} and {int(ids.max())}, the vocabulary has {vocabulary}.")
