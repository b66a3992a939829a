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
from qkv.parts.attention.visibility import Mask, SameDocument
from qkv.parts.attention.whole_rows import Documents, documents_of, looks_ahead
from qkv.parts.precision import widened
from qkv.parts.programs import is_served
from qkv.parts.spec import Depends

SELF = -1e5  # a token's score for itself: it attends to itself when it sees no one else [kitaev2020 §2]

NEARLY_NOTHING = 1e-6  # added to the mean square of a key before it is made a unit vector


class LSHKernel(nn.Module):
    """An attention kernel for shared queries and keys: k must point where q does. No k: the queries made unit vectors.

    `buckets` may be factors, (16, 32) for 512: two small rotations find what one large one would. None: about two
    buckets a chunk, as the paper recommends. With a `seed` every call draws the same rotations, otherwise its own.
    A row of more than `whole` tokens is filled up to a multiple of `fill`, both a chunk by default: where other layers
    have chunks of other lengths, published models were trained on rows filled for all of them.
    """

    depends_on = Depends("fill", "whole", "chunk", "rounds", "before", "after", "seed", "buckets")

    def __init__(
        self,
        *,
        chunk: int = 64,
        rounds: int = 1,
        buckets: int | tuple[int, ...] | None = None,
        before: int = 1,
        after: int = 0,
        seed: int | None = None,
        fill: int | None = None,
        whole: int | None = None,
    ) -> None:
        super().__init__()
        self.fill, self.whole = fill or chunk, whole or chunk
        if self.fill % chunk or self.whole > chunk:
            raise QkvError(
                f"Rows of chunks of {chunk} are filled to multiples of it, and from one chunk on at the latest."
            )
        self.chunk, self.rounds, self.before, self.after, self.seed = chunk, rounds, before, after, seed
        self.buckets = (buckets,) if isinstance(buckets, int) else buckets
        for factor in self.buckets or ():
            if factor < 2 or factor % 2:
                raise QkvError(f"A rotation has two sides, so {factor} buckets are not to be had: give an even number.")

    def forward(
        self,
        q: Tensor,
        k: Tensor | None,
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
        if k is not None and q.shape[:3] != k.shape[:3]:
            raise QkvError(
                "LSH attention needs all tokens of a row at once, each with one key: decode without a cache."
            )
        causal, documents = looks_ahead(mask, SameDocument), documents_of(mask)  # [b n]
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        length = q.shape[2]
        slots = length if length <= self.whole else length + -length % self.fill
        if slots <= self.chunk:  # one chunk: nothing to sort
            order = torch.arange(length, device=q.device).expand(*q.shape[:2], 1, length)
            k = unit_keys(q) if k is None else k
            return _in_torch(q, k, v, order, documents, length, 0, 0, causal, scale, dropout)[0][:, :, 0]
        real = None if documents is None else documents.numbers > 0
        factors = self.buckets or recommended_buckets(slots, self.chunk)
        rotations = self._rotations(q, factors)
        apart = documents is not None and documents.apart
        if not apart and len(factors) <= 2 and self._on_gpu(q, v, dropout):
            from qkv.parts.attention.kernels import lsh_triton

            cut = lsh_triton.Chunks(self.chunk, self.before, self.after, causal, scale)
            return lsh_triton.attend(q, k, v, rotations, factors, real, slots, cut)
        bucket = buckets_of(q if k is None else k, rotations, factors, real)
        order = sorted_by_bucket(bucket, slots, math.prod(factors))  # [b h r s]
        k = unit_keys(q) if k is None else k
        o, log_sum = _in_torch(q, k, v, order, documents, self.chunk, self.before, self.after, causal, scale, dropout)
        if self.rounds == 1:
            return o[:, :, 0]
        share = torch.softmax(log_sum.masked_fill(log_sum == -torch.inf, -1e30), 2)  # of each round [kitaev2020 eq.6]
        return (o * share[..., None].to(o.dtype)).sum(2)

    def _on_gpu(self, q: Tensor, v: Tensor, dropout: float) -> bool:
        """Whether programs do it: they drop no weights, and hold chunks of some sizes only."""
        if dropout or not is_served(q):
            return False
        from qkv.parts.attention.kernels import lsh_triton  # Triton comes with torch's builds for GPUs only

        return lsh_triton.fits(q, v, self.chunk)

    def _rotations(self, x: Tensor, factors: tuple[int, ...]) -> Tensor:
        """Columns for all factors side by side, half as many as buckets: each has an opposite. [h d r m]"""
        generator = None
        if self.seed is not None and not x.is_meta:
            generator = torch.Generator(x.device).manual_seed(self.seed)
        shape = (x.shape[1], x.shape[3], self.rounds, sum(factors) // 2)
        return torch.randn(shape, device=x.device, dtype=x.dtype, generator=generator)

    def extra_repr(self) -> str:
        return f"{self.rounds} rounds, chunks of {self.chunk}"


def unit_keys(q: Tensor) -> Tensor:
    """k = q / |q| [b h n d]"""
    return q * (widened(q).square().mean(-1, keepdim=True) + NEARLY_NOTHING).rsqrt().to(q.dtype) * q.shape[-1] ** -0.5


@torch.no_grad()
def buckets_of(x: Tensor, rotations: Tensor, factors: tuple[int, ...], real: Tensor | None) -> Tensor:
    """The bucket of every token in every round; padding is in one behind all others. [b h r n]"""
    turned = torch.einsum("bhnd,hdrm->bhrnm", x, rotations)
    bucket = torch.zeros(turned.shape[:-1], dtype=torch.long, device=x.device)
    for factor, part in zip(factors[::-1], turned.split([f // 2 for f in factors], -1)[::-1], strict=True):
        bucket = bucket * factor + torch.cat([part, -part], -1).argmax(-1)  # [kitaev2020 eq.4]
    return bucket if real is None else bucket.masked_fill(~real[:, None, None], math.prod(factors))


def sorted_by_bucket(bucket: Tensor, slots: int, last: int) -> Tensor:
    """The tokens of a row in the order of their buckets, and within a bucket in that of the row. [b h r s]

    The row is filled up to `slots` by numbers past its end, which stand in the `last` bucket with the padding.
    """
    bucket = F.pad(bucket, (0, slots - bucket.shape[-1]), value=last)
    return (bucket * slots + torch.arange(slots, device=bucket.device)).argsort(-1)


def recommended_buckets(length: int, chunk: int) -> tuple[int, ...]:
    """About 2n/c buckets, a power of two; in two factors where that is more than two for each token of a chunk."""
    power = (2 * (length // chunk)).bit_length() - 1
    return (2**power,) if 2**power <= 2 * chunk else (2 ** (power // 2), 2 ** (power - power // 2))


def _in_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    order: Tensor,
    documents: Documents | None,
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
        numbers = order.new_ones(len(q), length) if documents is None else documents.numbers
        documents = Documents(F.pad(numbers, (0, slots - length)), documents is not None and documents.apart)
    q, k, v = (_gathered(x, order).unflatten(2, (-1, chunk)) for x in (q, k, v))  # [b h t c ·]
    place = order.flatten(2).unflatten(2, (-1, chunk))  # [b h t c]
    near = range(before, -after - 1, -1)  # how far back the chunks lie that are read
    k, v, at = (torch.cat([x.roll(step, 2) for step in near], 3) for x in (k, v, place))  # [b h t a ·]
    scores = widened(q @ k.transpose(-1, -2)) * scale  # [b h t c a]
    mine, theirs = place[..., :, None], at[..., None, :]
    scores = scores.masked_fill(mine == theirs, SELF)
    if causal:
        scores = scores.masked_fill(theirs > mine, -torch.inf)
    if documents is not None:
        my_own, their_own = (
            documents.numbers[:, None].expand(-1, x.shape[1], -1).gather(2, x.flatten(2)).view(x.shape)
            for x in (place, at)
        )  # [b h t c] [b h t a]
        scores = scores.masked_fill(their_own[..., None, :] == 0, -torch.inf)
        if documents.apart:
            scores = scores.masked_fill(my_own[..., :, None] != their_own[..., None, :], -torch.inf)
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
