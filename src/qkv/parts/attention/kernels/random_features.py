"""Attention by random features: exp(q·k) is the mean of φ(q)·φ(k), so sums over keys are made once for all queries.

    Σ_k exp(q·k) v  ≈  φ(q) Σ_k φ(k) vᵀ

costs n·m·e for n tokens, m features and values of width e, where exact attention costs n². Under a look-ahead mask
the sums are prefix sums.

Shapes: b rows, h query heads, g key/value heads, q queries, k keys, n tokens, d width of a key, e of a value,
m features, c tokens of a chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.attention.kernels.refusals import refuse_dropout, refuse_recording
from qkv.parts.attention.visibility import Mask
from qkv.parts.attention.whole_rows import looks_ahead, real_keys
from qkv.parts.precision import without_autocast

CHUNK = 128  # tokens; within a chunk the table of queries and keys is formed, between chunks only sums pass


class Features(Protocol):
    """φ: what queries and keys are turned into. Both get x [b h n d] already scaled and give [b h n m] in float32."""

    def queries(self, x: Tensor) -> Tensor: ...

    def keys(self, x: Tensor, real: Tensor | None) -> Tensor: ...


def orthogonal_directions(features: int, width: int, generator: torch.Generator | None = None) -> Tensor:
    """Gaussian directions that are orthogonal in blocks of `width`, each of a Gaussian's length. [choromanski2021 §2.4]

    Each alone is distributed as an independent one; together they cover the sphere more evenly. [m d]
    """
    blocks = []
    for _ in range(-(-features // width)):
        q, r = torch.linalg.qr(torch.randn(width, width, generator=generator))
        blocks.append((q * r.diagonal().sign()).T)  # with the signs fixed q is uniform among all rotations
    lengths = torch.randn(features, width, generator=generator).norm(dim=1, keepdim=True)
    return torch.cat(blocks)[:features] * lengths


class PositiveFeatures(nn.Module):
    """φ(x) = exp(ωᵀx - |x|²/2) / √m: never negative, so no softmax weight is. [choromanski2021 lemma 1, eq.7]

    E[φ(q)·φ(k)] = exp(q·k). The exponents are lowered by their largest one, a factor that the ratio cancels. A `floor`
    beneath all features, as some implementations have it, does not cancel, and lets early tokens feel later ones by way
    of that largest exponent: it is 0 unless asked for. After every `redraw_every` training calls they are redrawn.
    """

    directions: Tensor
    calls: Tensor

    def __init__(self, features: int, width: int, *, redraw_every: int | None = None, floor: float = 0.0) -> None:
        super().__init__()
        self.redraw_every, self.floor = redraw_every, floor
        self.register_buffer("directions", orthogonal_directions(features, width))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def redraw(self, generator: torch.Generator | None = None) -> None:
        """New directions, so that the errors of the old ones are not learned."""
        features, width = self.directions.shape
        self.directions.copy_(orthogonal_directions(features, width, generator))

    def queries(self, x: Tensor) -> Tensor:
        if self.training and self.redraw_every is not None:
            self.calls += 1
            if int(self.calls) % self.redraw_every == 0:
                self.redraw()
        exponents = self._exponents(x)
        return self._positive(exponents - exponents.detach().amax(-1, keepdim=True))

    def keys(self, x: Tensor, real: Tensor | None) -> Tensor:
        exponents = self._exponents(x)
        seen = exponents.detach() if real is None else exponents.detach().masked_fill(~real, -torch.inf)
        largest = seen.amax((-1, -2), keepdim=True)  # one for all keys of a head: they must stay comparable
        return self._positive(exponents - largest.masked_fill(largest == -torch.inf, 0.0))

    def _exponents(self, x: Tensor) -> Tensor:
        x = x.float()
        return x @ self.directions.T - x.square().sum(-1, keepdim=True) / 2

    def _positive(self, exponents: Tensor) -> Tensor:
        return (exponents.exp() + self.floor) * len(self.directions) ** -0.5

    def extra_repr(self) -> str:
        return f"{len(self.directions)} features"


class WaveFeatures(nn.Module):
    """φ(x) = [sin ωᵀx, cos ωᵀx] / √m of unit vectors, with learned spreads of ω = σ∘ω̃. [peng2021 eq.3, §3.3]

    E[φ(q)·φ(k)] = exp(-|σ∘(q - k)|²/2), which for unit vectors and one spread is exp(σ²q·k) but for a factor.
    """

    directions: Tensor

    def __init__(self, features: int, width: int, heads: int) -> None:
        super().__init__()
        if features % 2:
            raise QkvError(f"{features} features cannot be half sines and half cosines: give an even number.")
        drawn = torch.stack([orthogonal_directions(features // 2, width) for _ in range(heads)])
        self.register_buffer("directions", drawn)  # [h m/2 d]
        self.spread = nn.Parameter(torch.ones(heads, 1, width))

    def queries(self, x: Tensor) -> Tensor:
        angles = F.normalize(x.float(), dim=-1) @ (self.directions * self.spread).transpose(-1, -2)  # [b h n m/2]
        return torch.cat([angles.sin(), angles.cos()], -1) * self.directions.shape[1] ** -0.5

    def keys(self, x: Tensor, real: Tensor | None) -> Tensor:
        return self.queries(x)


class RandomFeatureKernel(nn.Module):
    """An attention kernel that never forms the table of queries and keys. It knows padding and look-ahead alone."""

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features: Features = features  # type: ignore[assignment]

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
        gates: Tensor | None = None,
    ) -> Tensor:
        """q [b h q d], k [b g k d], v [b g k e] → [b h q e]. `gates` [b h k]: see `gated_prefix_attention`."""
        refuse_recording("random-feature", record)
        if bias is not None:
            raise QkvError("Random features cannot add a bias to scores that they never form: use another kernel.")
        refuse_dropout("random-feature", dropout)
        causal, real = looks_ahead(mask), real_keys(mask)
        real = None if real is None else real[:, None, :, None]  # [b 1 k 1]
        shared_by = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(shared_by, 1), v.repeat_interleave(shared_by, 1)
        with without_autocast(q):
            root = math.sqrt(q.shape[-1] ** -0.5 if scale is None else scale)
            queries, keys = self.features.queries(q * root), self.features.keys(k * root, real)  # [b h n m]
            if real is not None:
                keys = keys * real
            values = F.pad(v.float(), (0, 1), value=1.0)  # a column of ones gathers the denominator
            if gates is not None:
                sums = gated_prefix_attention(queries, keys, values, gates.float())
            elif causal:
                sums = prefix_attention(queries, keys, values)
            else:
                sums = queries @ (keys.transpose(-1, -2) @ values)  # [b h q e+1]
            below = sums[..., -1:]
            o = sums[..., :-1] / torch.where(below.abs() < 1e-12, torch.ones_like(below), below)
        return o.to(v.dtype)


def prefix_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Σ over the keys up to each query of φ(q)·φ(k) v, by sums of whole chunks before and the own chunk in full.

    queries, keys [b h n m], values [b h n e] → [b h n e]
    """
    length, chunk = queries.shape[2], min(CHUNK, queries.shape[2])
    queries, keys, values = (_in_chunks(x, chunk) for x in (queries, keys, values))  # [b h n/c c ·]
    sums = keys.transpose(-1, -2) @ values  # [b h n/c m e]
    before = sums.cumsum(2) - sums
    own = (queries @ keys.transpose(-1, -2)).tril()  # [b h n/c c c]
    return (queries @ before + own @ values).flatten(2, 3)[:, :, :length]


def gated_prefix_attention(queries: Tensor, keys: Tensor, values: Tensor, gates: Tensor) -> Tensor:
    """The same with a memory that fades: S ← g·S + (1 - g) φ(k) vᵀ, token by token. [peng2021 eq.7]

    gates [b h n] between 0 and 1. Within a chunk a key of slot j reaches slot i times g_{j+1} … g_i.
    """
    length, chunk = queries.shape[2], min(CHUNK, queries.shape[2])
    logs = gates.clamp_min(1e-6).log()
    keys = keys * (1 - gates)[..., None]
    queries, keys, values = (_in_chunks(x, chunk) for x in (queries, keys, values))
    fading = _in_chunks(logs[..., None], chunk)[..., 0].cumsum(-1)  # [b h n/c c]: log of g_1 … g_i within the chunk
    between = (fading[..., :, None] - fading[..., None, :]).tril().exp().tril()  # [b h n/c c c]
    to_end = (fading[..., -1:] - fading).exp()[..., None]
    sums = (keys * to_end).transpose(-1, -2) @ values  # [b h n/c m e]
    state, before = torch.zeros_like(sums[:, :, 0]), []
    for number in range(sums.shape[2]):
        before.append(state)
        state = state * fading[:, :, number, -1, None, None].exp() + sums[:, :, number]
    from_before = (queries * fading.exp()[..., None]) @ torch.stack(before, 2)
    own = (queries @ keys.transpose(-1, -2)) * between
    return (from_before + own @ values).flatten(2, 3)[:, :, :length]


def _in_chunks(x: Tensor, chunk: int) -> Tensor:
    """[b h n ·] → [b h n/c c ·], filled up with zeros."""
    return F.pad(x, (0, 0, 0, -x.shape[2] % chunk)).unflatten(2, (-1, chunk))
