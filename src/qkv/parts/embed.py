"""Embeddings: ids in, stream out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Context


class TokenEmbedding(nn.Module):
    """One learned vector an id, times `scale` (√width in the 2017 Transformer). [vaswani2017 §3.4]"""

    def __init__(self, vocabulary: int, width: int, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(torch.randn(vocabulary, width) * width**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """[b s] → [b s d]"""
        if ids.device.type == "cpu" and not torch.compiler.is_compiling():  # elsewhere looking would make it wait
            check_ids(ids, len(self.weight))
        x = F.embedding(ids, self.weight)
        return x if self.scale == 1.0 else x * self.scale


class Embed(nn.Module):
    """project(dropout(norm(token + segment + position))), of which all but the tokens may be absent.

    The 2017 Transformer has tokens, positions and dropout [vaswani2017 §5.4]; BERT adds segments and a norm
    [devlin2019 §3]; a narrow table that is projected to the stream's width is ALBERT's [lan2020 §3.1].
    """

    def __init__(
        self,
        tokens: TokenEmbedding,
        position: nn.Module | None = None,
        dropout: float = 0.0,
        *,
        segments: TokenEmbedding | None = None,
        norm: nn.Module | None = None,
        project: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.tokens, self.position, self.segments = tokens, position, segments
        self.norm, self.dropout, self.project = norm, nn.Dropout(dropout), project

    @property
    def vocabulary(self) -> int:
        return len(self.tokens.weight)

    @property
    def tells_segments(self) -> bool:
        """Whether the texts of a row can be told apart; a single segment is a vector that every token gets."""
        return self.segments is not None and len(self.segments.weight) > 1

    def slots(self, ids: Tensor, lengths: Tensor | None) -> Tokens:
        """Where the stream's tokens stand: one a slot of ids [b s], of which `lengths` are real; None: all."""
        return Tokens(ids.shape[1]) if lengths is None else Tokens.padded(lengths, ids.shape[1])

    def forward(self, ids: Tensor, ctx: Context) -> Tensor:
        x = self.tokens(ids)  # [b s d]
        if ctx.segments is not None and not self.tells_segments:
            raise QkvError("This model does not tell segments apart: give none.")
        if self.segments is not None:
            # Where all tokens are of one text they share a vector, [1 d].
            x = x + self.segments(ids.new_zeros(1) if ctx.segments is None else ctx.segments)
        if self.position is not None:
            positions = ctx.position_ids(ids.device)
            x = x + self.position(positions, ctx.longest())
        if self.norm is not None:
            x = self.norm(x, ctx)
        x = self.dropout(x)
        return x if self.project is None else self.project(x)


def check_ids(ids: Tensor, vocabulary: int) -> None:
    """An id out of range is a clear error here and an obscure one, or a wrong answer, anywhere later."""
    if ids.numel() and not (0 <= int(ids.min()) and int(ids.max()) < vocabulary):
        raise QkvError(f"Token ids lie between {int(ids.min())} and {int(ids.max())}, the vocabulary has {vocabulary}.")
