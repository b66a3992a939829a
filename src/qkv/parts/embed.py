"""Embeddings: ids in, stream out."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from qkv.errors import QkvError
from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Context
from qkv.parts.in_place import norm_into, norm_is_known, only_answers, pays
from qkv.parts.programs import is_counted, runs_or_counts, unwatched
from qkv.parts.spec import Depends

FEW = 64  # ids
ENOUGH = 1 << 20  # numbers of a gradient; with fewer, launching programs takes the host longer than they save


class TokenEmbedding(nn.Module):
    """One learned vector an id, times `scale` (√width in the 2017 Transformer). [vaswani2017 §3.4]"""

    depends_on = Depends("weight", scale=1.0)

    def __init__(self, vocabulary: int, width: int, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(torch.randn(vocabulary, width) * width**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """[b s] → [b s d]"""
        if ids.device.type == "cpu" and not torch.compiler.is_compiling():  # elsewhere looking would make it wait
            check_ids(ids, len(self.weight))
        x = _Vectors.apply(ids, self.weight) if _learns_in_programs(ids, self.weight) else F.embedding(ids, self.weight)
        return x if self.scale == 1.0 else x * self.scale


class _Vectors(torch.autograd.Function):
    """`F.embedding`, whose gradient is summed by programs."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.vocabulary = len(weight)
        return F.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[None, Tensor]:
        from qkv.parts import embed_triton  # Triton comes with torch's builds for GPUs only

        (ids,) = ctx.saved_tensors
        return None, embed_triton.of_vectors(ids.flatten(), above.flatten(0, -2), ctx.vocabulary)


def _learns_in_programs(ids: Tensor, weight: Tensor) -> bool:
    """Whether a gradient is asked for that programs sum, and it pays."""
    learns = torch.is_grad_enabled() and weight.requires_grad and weight.dtype == torch.float32
    return (
        learns
        and ids.numel() * weight.shape[1] >= ENOUGH
        and runs_or_counts(weight)
        and (unwatched(ids) or is_counted(ids))
    )


class Embed(nn.Module):
    """project(dropout(norm(token + segment + position))), of which all but the tokens may be absent.

    The 2017 Transformer has tokens, positions and dropout [vaswani2017 §5.4]; BERT adds segments and a norm
    [devlin2019 §3]; a narrow table that is projected to the stream's width is ALBERT's [lan2020 §3.1].
    """

    depends_on = Depends("tokens", "dropout", segments=None, norm=None, project=None, position=None)

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
        if self.segments is not None and ctx.segments is not None:
            x = x + self.segments(ctx.segments)
        # Where all tokens are of one text they share its vector, [1 d].
        shared = self.segments(ids.new_zeros(1)) if self.segments is not None and ctx.segments is None else None
        place = None if self.position is None else self.position(ctx.position_ids(ids.device), ctx.longest())
        x = self.dropout(self._normed(x, shared, place, ctx))
        return x if self.project is None else self.project(x)

    def _normed(self, x: Tensor, shared: Tensor | None, place: Tensor | None, ctx: Context) -> Tensor:
        """norm(x + shared + place), [b s d] [1 d] and [s d] or [b s d], in one pass where only the answer counts."""
        together = pays(x) and only_answers(x, ctx) and all(_alike(x, each) for each in (x, shared, place))
        if together and norm_is_known(self.norm, x):
            y = torch.empty_like(x)
            norm_into(y, self.norm, x, places=place, bias=None if shared is None else shared[0])
            return y
        for each in (shared, place):
            if each is not None:
                x = x + each
        return x if self.norm is None else self.norm(x, ctx)


def _alike(x: Tensor, other: Tensor | None) -> bool:
    """Whether the other is a plain tensor of the same precision, if it is there."""
    return other is None or (other.dtype == x.dtype and type(other) in (nn.Parameter, Tensor) and other.is_contiguous())


def check_ids(ids: Tensor, vocabulary: int) -> None:
    """An id out of range is a clear error here and an obscure one, or a wrong answer, anywhere later."""
    if not ids.numel():
        return
    if ids.numel() <= FEW:  # of a step of decoding, where asking torch twice takes longer than looking at each
        numbers = ids.flatten().tolist()
        lowest, highest = min(numbers), max(numbers)
    else:
        lowest, highest = int(ids.min()), int(ids.max())
    if lowest < 0 or highest >= vocabulary:
        raise QkvError(f"Token ids lie between {lowest} and {highest}, the vocabulary has {vocabulary}.")
