"""Reformer's attention: tokens are hashed by direction and attend to those sorted near them. [kitaev2020 §2]

A softmax is ruled by its largest scores, and those are of vectors that point the same way. Such vectors fall into one
bucket of a random rotation [kitaev2020 eq.4]: sorted by bucket and cut into chunks, each chunk reads itself and the
one before. Several rounds with other rotations find what one has missed.

Shapes: b rows, h heads, n tokens, d width of a key, e of a value, r rounds, t chunks of all rounds, c tokens of a
chunk, a tokens of a chunk and its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.attention.visibility import Mask
from qkv.parts.attention.whole_rows import looks_ahead, real_keys
from qkv.parts.precision import widened

SELF = -1e5  # a token's score for itself: it attends to itself when it sees no one else [kitaev2020 §2]


class LSHKernel(nn.Module):
    """An attention kernel for shared queries and keys: k must point where q does, as `SharedAttention` makes it.

    `buckets` may be factors, (16, 32) for 512: two small rotations find what one large one would. None: about two
    buckets a chunk, as the paper recommends. With a `seed` every call draws the same rotations, otherwise its own.
    """

    def __init__(
        self,
        *,
        chunk: int = 64,
        rounds: int = 1,
        buckets: int | tuple[int, ...] | None = None,
        before: int = 1,
        after: int = 0,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.chunk, self.rounds, self.before, self.after, self.seed = chunk, rounds, before, after, seed
        self.buckets = (buckets,) if isinstance(buckets, int) else buckets
        for factor in self.buckets or ():
            if factor < 2 or factor % 2:
                raise QkvError(f"A rotation has two sides, so {factor} buckets are not to be had: give an even number.")

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask | None = None,
        bias: Tensor | None = None,
        *,
        scale: float | None = None,
        dropout: float = 0.0,
        record: Callable[[Tensor], None] | None = None,
    ) -> Tensor:
        """q, k [b h n d], v [b h n e] → [b h n e]"""
        if record is not None:
            raise QkvError("LSH attention forms scores of sorted chunks only: record weights with the exact kernel.")
        if bias is not None:
            raise QkvError("LSH attention has no place for a bias on scores: use another kernel.")
        if q.shape[:3] != k.shape[:3]:
            raise QkvError(
                "LSH attention needs all tokens of a row at once, each with one key: decode without a cache."
            )
        causal, real = looks_ahead(mask), real_keys(mask)  # [b n]
        length, scale = q.shape[2], q.shape[-1] ** -0.5 if scale is None else scale
        position = torch.arange(length, device=q.device).expand(q.shape[:3])  # [b h n]
        if length <= self.chunk:  # one chunk: nothing to sort
            q, k, v, position = (x.unsqueeze(2) for x in (q, k, v, position))
            o, _ = self._attend(q, (k,), (v,), position, (position,), real, causal, scale, dropout)
            return o[:, :, 0]
        missing = -length % self.chunk
        if missing:
            q, k, v = (F.pad(x, (0, 0, 0, missing)) for x in (q, k, v))
            real = q.new_ones(len(q), length, dtype=torch.bool) if real is None else real
            real = F.pad(real, (0, missing))
        order = self._sorted(k, real)  # [b h r n]
        back = order.argsort(-1)
        sorted_qkv = (_gathered(x, order).unflatten(2, (-1, self.chunk)) for x in (q, k, v))  # [b h t c ·]
        q, k, v = sorted_qkv
        place = order.flatten(2).unflatten(2, (-1, self.chunk))  # [b h t c]
        near = range(-self.after, self.before + 1)  # chunks that are read, by how far they lie back
        keys, values, places = ([x.roll(step, 2) for step in near] for x in (k, v, place))
        o, log_sum = self._attend(q, keys, values, place, places, real, causal, scale, dropout)
        o = o.flatten(2, 3).unflatten(2, (self.rounds, -1))  # [b h r n e]
        log_sum = log_sum.flatten(2).unflatten(2, (self.rounds, -1))[..., None]
        o, log_sum = (x.gather(3, back[..., None].expand(x.shape)) for x in (o, log_sum))
        share = torch.softmax(log_sum.masked_fill(log_sum == -torch.inf, -1e30), 2)  # of each round [kitaev2020 eq.6]
        return (o * share.to(o.dtype)).sum(2)[:, :, :length]

    def _attend(
        self,
        q: Tensor,
        keys: list[Tensor] | tuple[Tensor, ...],
        values: list[Tensor] | tuple[Tensor, ...],
        place: Tensor,
        places: list[Tensor] | tuple[Tensor, ...],
        real: Tensor | None,
        causal: bool,
        scale: float,
        dropout: float,
    ) -> tuple[Tensor, Tensor]:
        """Chunk by chunk: (the attention [b h t c e], the logarithm of each softmax's sum [b h t c])."""
        k, v, at = torch.cat(keys[::-1], 3), torch.cat(values[::-1], 3), torch.cat(places[::-1], 3)  # [b h t a ·]
        scores = widened(q @ k.transpose(-1, -2)) * scale  # [b h t c a]
        mine, theirs = place[..., :, None], at[..., None, :]
        scores = scores.masked_fill(mine == theirs, SELF)
        if causal:
            scores = scores.masked_fill(theirs > mine, -torch.inf)
        if real is not None:
            seen = real[:, None].expand(at.shape[0], at.shape[1], -1).gather(2, at.flatten(2)).view(at.shape)
            scores = scores.masked_fill(~seen[..., None, :], -torch.inf)
        log_sum = scores.logsumexp(-1)
        level = log_sum.masked_fill(log_sum == -torch.inf, 0.0)
        weights = (scores - level[..., None]).exp().to(v.dtype)
        return F.dropout(weights, dropout) @ v, log_sum

    @torch.no_grad()
    def _sorted(self, x: Tensor, real: Tensor | None) -> Tensor:
        """The tokens of a row in the order of their buckets, and within a bucket in that of the row. [b h r n]"""
        heads, length, width = x.shape[1:]
        factors = self.buckets or recommended_buckets(length, self.chunk)
        generator = None
        if self.seed is not None:
            generator = torch.Generator(x.device).manual_seed(self.seed)
        shape = (heads, width, self.rounds, sum(factors) // 2)
        rotations = torch.randn(shape, device=x.device, dtype=x.dtype, generator=generator)
        turned = torch.einsum("bhnd,hdrm->bhrnm", x, rotations)
        bucket = torch.zeros(turned.shape[:-1], dtype=torch.long, device=x.device)
        for factor, part in zip(factors[::-1], turned.split([f // 2 for f in factors], -1)[::-1], strict=True):
            bucket = bucket * factor + torch.cat([part, -part], -1).argmax(-1)  # [kitaev2020 eq.4]
        if real is not None:
            bucket = bucket.masked_fill(~real[:, None, None], math.prod(factors))  # padding in a bucket of its own
        return (bucket * length + torch.arange(length, device=x.device)).argsort(-1)

    def extra_repr(self) -> str:
        return f"{self.rounds} rounds, chunks of {self.chunk}"


def recommended_buckets(length: int, chunk: int) -> tuple[int, ...]:
    """About 2n/c buckets, a power of two; in two factors where that is more than two for each token of a chunk."""
    power = (2 * (length // chunk)).bit_length() - 1
    return (2**power,) if 2**power <= 2 * chunk else (2 ** (power // 2), 2 ** (power - power // 2))


def _gathered(x: Tensor, order: Tensor) -> Tensor:
    """x [b h n ·] in the order of every round. [b h r·n ·]"""
    places = order.flatten(2)[..., None].expand(-1, -1, -1, x.shape[-1])
    return x.gather(2, places)
