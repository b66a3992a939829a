"""The usual step of decoding without detours, of models that read a source: cross-attention, other norms, a bias.

Beside `straight`, which says what this is for and what the usual step is.

Shapes: m sources, n rows (beams) of each, h query heads, g key/value heads, k keys, d width of a key, e of a value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.parts.attention.attention import CrossAttention
from qkv.parts.attention.visibility import Everything, NotPadding, Tokens
from qkv.parts.context import Context
from qkv.parts.norm import RMSNorm
from qkv.parts.position import RelativeBuckets
from qkv.parts.residual import PostNorm

ONE = Tokens(1)  # padding is hidden from all queries alike
SHORT = 64  # tokens: biases for twice as many are made at first


class StraightCrossAttention(nn.Module):
    """An attention to a memory whose keys and values are in the cache."""

    def __init__(self, whole: CrossAttention) -> None:
        super().__init__()
        self.whole = whole
        self._query, self._out = whole.query.forward, whole.out.forward
        self._heads, self._key_width, self._scale = whole.heads, whole.key_width, whole.scale
        self._grouped = whole.key_value_heads != whole.heads

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        rows, slots, _ = x.shape
        if slots != 1 or ctx.memory is None or rows % len(ctx.memory) or not _plain(ctx):
            return self.whole.forward(x, ctx)
        k, v = self.whole.of_memory(ctx)  # [m g k d] [m g k e]
        q = self._query(x).view(len(k), -1, self._heads, self._key_width).transpose(1, 2)  # [m h n d]
        tokens = ctx.memory_tokens
        if tokens is None or tokens.documents is None:
            o = F.scaled_dot_product_attention(q, k, v, scale=self._scale, enable_gqa=self._grouped)  # [m h n e]
        else:
            mask = ctx.mask(self.whole.visibility, ONE, tokens, x.device)
            table = mask.without_empty_rows  # [m 1 1 k]
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=table, scale=self._scale, enable_gqa=self._grouped)
            o = o * mask.sees_something
        return self._out(o.transpose(1, 2).reshape(rows, 1, -1))


def _plain(ctx: Context) -> bool:
    """Whether nothing is said but what is padding, and keys need not be made anew."""
    told = isinstance(ctx.visibility, NotPadding | Everything) and ctx.cache is not None and ctx.ledger is None
    return told and ctx.position_vectors is None and ctx.memory_position_vectors is None


class StraightPostNorm(nn.Module):
    """norm(x + mixer(x)): what `PostNorm` is in evaluation."""

    def __init__(self, whole: PostNorm) -> None:
        super().__init__()
        self.norm, self.mixer = whole.norm, whole.mixer
        self._norm, self._mixer = whole.norm.forward, whole.mixer.forward

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        y: Tensor = self._norm(x + self._mixer(x, ctx), ctx)
        return y


class StraightRMSNorm(nn.Module):
    """x √d w / √(‖x‖² + dε): torch makes twice as many small operations of a norm by the root mean square."""

    def __init__(self, whole: RMSNorm) -> None:
        super().__init__()
        self.whole = whole
        width = len(whole.weight)
        self._weight = whole.weight.detach() * width**0.5
        self._least = torch.tensor((width * whole.epsilon) ** 0.5)

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        if x.dtype != torch.float32 or self._weight.dtype != torch.float32:
            return self.whole.forward(x, ctx)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(self._least)  # [b s 1]
        return (x / length).mul_(self._weight)


class StraightBuckets(nn.Module):
    """The biases of a token that looks back: a stretch of those for the longest row so far."""

    def __init__(self, whole: RelativeBuckets) -> None:
        super().__init__()
        self.whole = whole
        self._past: Tensor | None = None  # [1 h 1 k]

    def forward(self, query: Tokens, key: Tokens) -> Tensor:
        if query.size != 1 or key.start != 0 or query.start != key.size - 1 or torch.is_autocast_enabled("cpu"):
            return self.whole.forward(query, key)
        if self._past is None or self._past.shape[-1] < key.size:
            longest = 2 * max(key.size, SHORT)
            self._past = self.whole.forward(Tokens(1, longest - 1), Tokens(longest))
        return self._past[..., self._past.shape[-1] - key.size :]


OF_SOURCE: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    CrossAttention: StraightCrossAttention,
    PostNorm: StraightPostNorm,
    RMSNorm: StraightRMSNorm,
    RelativeBuckets: StraightBuckets,
}
