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
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        length = q.shape[2]
        if length <= self.chunk:  # one chunk: nothing to sort
            order = torch.arange(length, device=q.device).expand(*q.shape[:2], 1, length)
            return _in_torch(q, k, v, order, real, length, 0, 0, causal, scale, dropout)[0][:, :, 0]
        order = self._sorted(k, real)  # [b h r s]
        if self._on_gpu(q, dropout):
            from qkv.parts.attention.kernels import lsh_triton

            o, log_sum = lsh_triton.attend(
                q, k, v, order, real, chunk=self.chunk, before=self.before, after=self.after, causal=causal, scale=scale
            )
        else:
            o, log_sum = _in_torch(q, k, v, order, real, self.chunk, self.before, self.after, causal, scale, dropout)
        if self.rounds == 1:
            return o[:, :, 0]
        share = torch.softmax(log_sum.masked_fill(log_sum == -torch.inf, -1e30), 2)  # of each round [kitaev2020 eq.6]
        return (o * share[..., None].to(o.dtype)).sum(2)

    def _on_gpu(self, q: Tensor, dropout: float) -> bool:
        """Its programs want chunks that a matrix product can be made of, and weights that are not dropped."""
        return q.is_cuda and not dropout and self.chunk in (16, 32, 64, 128)

    @torch.no_grad()
    def _sorted(self, x: Tensor, real: Tensor | None) -> Tensor:
        """The tokens of a row in the order of their buckets, and within a bucket in that of the row. [b h r s]

        The row is filled up to whole chunks by numbers past its end, which stand in a bucket with the padding.
        """
        heads, length, width = x.shape[1:]
        factors = self.buckets or recommended_buckets(length + -length % self.chunk, self.chunk)
        generator = None
        if self.seed is not None:
            generator = torch.Generator(x.device).manual_seed(self.seed)
        shape = (heads, width, self.rounds, sum(factors) // 2)
        rotations = torch.randn(shape, device=x.device, dtype=x.dtype, generator=generator)
        turned = torch.einsum("bhnd,hdrm->bhrnm", x, rotations)
        bucket = torch.zeros(turned.shape[:-1], dtype=torch.long, device=x.device)
        for factor, part in zip(factors[::-1], turned.split([f // 2 for f in factors], -1)[::-1], strict=True):
            bucket = bucket * factor + torch.cat([part, -part], -1).argmax(-1)  # [kitaev2020 eq.4]
        last = math.prod(factors)  # the bucket of padding
        if real is not None:
            bucket = bucket.masked_fill(~real[:, None, None], last)
        bucket = F.pad(bucket, (0, -length % self.chunk), value=last)
        slots = bucket.shape[-1]
        return (bucket * slots + torch.arange(slots, device=x.device)).argsort(-1)

    def extra_repr(self) -> str:
        return f"{self.rounds} rounds, chunks of {self.chunk}"


def recommended_buckets(length: int, chunk: int) -> tuple[int, ...]:
    """About 2n/c buckets, a power of two; in two factors where that is more than two for each token of a chunk."""
    power = (2 * (length // chunk)).bit_length() - 1
    return (2**power,) if 2**power <= 2 * chunk else (2 ** (power // 2), 2 ** (power - power // 2))


def _in_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    order: Tensor,
    real: Tensor | None,
    chunk: int,
    before: int,
    after: int,
    causal: bool,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """(each round's attention [b h r n e], the logarithm of each softmax's sum [b h r n]), tokens in their places."""
    (_, _, rounds, slots), length = order.shape, q.shape[2]
    if slots > length:  # filling, which nobody sees
        q, k, v = (F.pad(x, (0, 0, 0, slots - length)) for x in (q, k, v))
        real = q.new_ones(len(q), length, dtype=torch.bool) if real is None else real
        real = F.pad(real, (0, slots - length))
    q, k, v = (_gathered(x, order).unflatten(2, (-1, chunk)) for x in (q, k, v))  # [b h t c ·]
    place = order.flatten(2).unflatten(2, (-1, chunk))  # [b h t c]
    near = range(before, -after - 1, -1)  # how far back the chunks lie that are read
    k, v, at = (torch.cat([x.roll(step, 2) for step in near], 3) for x in (k, v, place))  # [b h t a ·]
    scores = widened(q @ k.transpose(-1, -2)) * scale  # [b h t c a]
    mine, theirs = place[..., :, None], at[..., None, :]
    scores = scores.masked_fill(mine == theirs, SELF)
    if causal:
        scores = scores.masked_fill(theirs > mine, -torch.inf)
    if real is not None:
        seen = real[:, None].expand(at.shape[0], at.shape[1], -1).gather(2, at.flatten(2)).view(at.shape)
        scores = scores.masked_fill(~seen[..., None, :], -torch.inf)
    largest = scores.detach().amax(-1, keepdim=True)
    p = (scores - largest.masked_fill(largest == -torch.inf, 0.0)).exp()  # [b h t c a]
    total = p.sum(-1, keepdim=True)
    total = total.masked_fill(total == 0, 1.0)  # of a query that sees nothing
    weights = p / total  # by the sum itself: near SELF its logarithm is too coarse to divide by
    log_sum = (largest + total.log())[..., 0]  # [b h t c], -∞ where nothing is seen
    o = F.dropout(weights.to(v.dtype), dropout) @ v  # [b h t c e]
    o, log_sum = (x.flatten(2, 3).unflatten(2, (rounds, -1)) for x in (o, log_sum))  # [b h r s ·]
    back = order.argsort(-1)
    o = o.gather(3, back[..., None].expand(o.shape))
    return o[:, :, :, :length], log_sum.gather(3, back)[..., :length]


def _gathered(x: Tensor, order: Tensor) -> Tensor:
    """x [b h n ·] in the order of every round. [b h r·n ·]"""
    places = order.flatten(2)[..., None].expand(-1, -1, -1, x.shape[-1])
    return x.gather(2, places)
