"""Attention by random features: exp(q·k) is the mean of φ(q)·φ(k), so sums over keys are made once for all queries.

    Σ_k exp(q·k) v  ≈  φ(q) Σ_k φ(k) vᵀ

costs n·m·e for n tokens, m features and values of width e, where exact attention costs n². Under a look-ahead mask
the sums are prefix sums. Features are many times wider than what they are made of, and never kept: programs for a GPU
make them in registers; else they are made segment by segment of a row, and again when gradients are asked for.

Shapes: b rows, h query heads, g key/value heads, q queries, k keys, n tokens, d/e widths of keys/values, m features.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qkv.errors import QkvError
from qkv.parts.attention.kernels.exponentials import exponentials
from qkv.parts.attention.kernels.prefix_sums import CHUNK, CHUNKS, beside, fading_sums, left_after, prefix_sums
from qkv.parts.attention.kernels.refusals import refuse_dropout, refuse_recording
from qkv.parts.attention.visibility import Mask
from qkv.parts.attention.whole_rows import looks_ahead, real_keys
from qkv.parts.precision import widened, without_autocast
from qkv.parts.programs import is_served
from qkv.parts.spec import Depends
from qkv.parts.uncompiled import uncompiled

SEGMENT = 1 << 25  # features of all rows and heads that are formed at once


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


class RandomDirections(nn.Module, ABC):
    """φ: what queries and keys are turned into, by directions ω drawn at random and kept with the weights.

    In training they are drawn anew after every `redraw_every` updates (`redraw_directions`), so that the errors of one
    draw are not learned.
    """

    depends_on = Depends("directions", "count", "redraw_every")

    directions: Tensor
    count: int  # of features
    least = 0.0  # a sum of products that is below this share of the number of keys is noise, and raised to it

    def __init__(self, directions: Tensor, redraw_every: int | None) -> None:
        super().__init__()
        if redraw_every is not None and redraw_every < 1:
            raise QkvError(f"Directions are drawn anew after 1 update or more, not after {redraw_every}.")
        self.redraw_every = redraw_every
        self.register_buffer("directions", directions)

    def is_due(self, updates: int) -> bool:
        """Whether new directions are wanted after so many updates."""
        return self.redraw_every is not None and updates > 0 and updates % self.redraw_every == 0

    @torch.no_grad()
    def redraw(self, generator: torch.Generator | None = None) -> None:
        *heads, features, width = self.directions.shape
        drawn = [orthogonal_directions(features, width, generator) for _ in range(math.prod(heads))]
        self.directions.copy_(torch.stack(drawn).view(self.directions.shape))

    @abstractmethod
    def forward(self, x: Tensor, scale: float) -> tuple[Tensor, Tensor | None]:
        """x [b h n d] → features [b h n m] for scores of this scale, and the logarithms of the factors by which they
        were made smaller [b h n 1]; None: they were not."""

    def extra_repr(self) -> str:
        return f"{self.count} features" + (f", new every {self.redraw_every}" if self.redraw_every else "")


def redraw_directions(model: nn.Module, updates: int) -> None:
    """Draw anew what is due after so many updates. The random numbers are torch's own, which a checkpoint holds."""
    for module in model.modules():
        if isinstance(module, RandomDirections) and module.is_due(updates):
            module.redraw()


def drawn_names(model: nn.Module) -> set[str]:
    """The names of tensors that were drawn: of two draws there is no average."""
    return {f"{name}.directions" for name, module in model.named_modules() if isinstance(module, RandomDirections)}


class PositiveFeatures(RandomDirections):
    """φ(x) = exp(ωᵀx - |x|²/2) / √m: never negative, so no softmax weight is. [choromanski2021 lemma 1, eq.7]

    E[φ(q)·φ(k)] = exp(q·k). Each token's features are made smaller by their largest one: for a query the ratio of two
    sums cancels that, and a key's value carries it on. A floor beneath all features, as some implementations have it,
    would not cancel.
    """

    depends_on = RandomDirections.depends_on.also()

    def __init__(self, features: int, width: int, *, redraw_every: int | None = None) -> None:
        super().__init__(orthogonal_directions(features, width), redraw_every)
        self.count = features

    def forward(self, x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        features, largest = exponentials(x, self.directions * math.sqrt(scale))
        return features, largest - widened(x).square().sum(-1, keepdim=True) * (scale / 2) - math.log(self.count) / 2


class WaveFeatures(RandomDirections):
    """φ(x) = [sin ωᵀx, cos ωᵀx] / √m of unit vectors, with learned spreads of ω = σ∘ω̃. [peng2021 eq.3, §3.3]

    E[φ(q)·φ(k)] = exp(-|σ∘(q - k)|²/2), which for unit vectors and one spread is exp(σ²q·k) but for a factor. The scale
    of scores plays no part: the spread has its place.
    """

    depends_on = RandomDirections.depends_on.also("spread")

    least = 0.01  # products of waves can cancel, so that a sum of them all but vanishes

    def __init__(self, features: int, width: int, heads: int, *, redraw_every: int | None = None) -> None:
        if features % 2:
            raise QkvError(f"{features} features cannot be half sines and half cosines: give an even number.")
        drawn = torch.stack([orthogonal_directions(features // 2, width) for _ in range(heads)])
        super().__init__(drawn, redraw_every)  # [h m/2 d]
        self.count = features
        self.spread = nn.Parameter(torch.ones(heads, 1, width))

    def forward(self, x: Tensor, scale: float) -> tuple[Tensor, None]:
        angles = F.normalize(widened(x), dim=-1) @ (self.directions * self.spread).transpose(-1, -2)  # [b h n m/2]
        waves = torch.cat([angles.sin(), angles.cos()], -1) * self.directions.shape[1] ** -0.5
        return waves.to(x.dtype), None


class Sums(NamedTuple):
    """All that is known of earlier tokens: those of segments before, or of a decoder's earlier steps."""

    of_values: Tensor  # [b h m e+]: Σ φ(k) [v 1]ᵀ, made smaller by the factor whose logarithm is `largest`
    largest: Tensor  # [b h 1 1]
    seen: Tensor  # [b h 1 1]: how many keys, or what is left of them where they fade


class RandomFeatureKernel(nn.Module):
    """An attention kernel that never forms the table of queries and keys. It knows padding and look-ahead alone."""

    depends_on = Depends("features")

    def __init__(self, features: RandomDirections) -> None:
        super().__init__()
        self.features = features

    @uncompiled  # how many segments there are follows from the length: each would be compiled anew
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
        """q [b h q d], k [b g k d], v [b g k e] → [b h q e]"""
        refuse_recording("random-feature", record)
        if bias is not None:
            raise QkvError("Random features cannot add a bias to scores that they never form: use another kernel.")
        refuse_dropout("random-feature", dropout)
        causal, real = looks_ahead(mask), real_keys(mask)
        if causal:
            return self.looking_back(q, k, v, real, scale=scale)[0]
        with without_autocast(q):
            (q, k, v), given = self._prepared(q, k, v), v.dtype
            scale = q.shape[-1] ** -0.5 if scale is None else scale
            programs = self._programs(q, v)
            if programs and q.shape[2] and k.shape[2]:
                return programs.attend(q, k, v, self.features.directions, real, scale).to(given)
            sums, real = self._nothing(q, v), _shown(real, k)
            for part in self._segments(k):
                sums = _again(self._gathered, scale, k[:, :, part], v[:, :, part], real[:, :, part], *sums)
            parts = [_again(self._read, scale, v.shape[-1], q[:, :, part], *sums) for part in self._segments(q)]
        return torch.cat(parts, 2).to(given)

    @uncompiled
    def looking_back(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        real: Tensor | None = None,
        sums: Sums | None = None,
        *,
        scale: float | None = None,
        gates: Tensor | None = None,
    ) -> tuple[Tensor, Sums]:
        """What each token reads of itself and those before it [b h n e], and the sums to go on from.

        `real` [b n]: which tokens are no padding; `sums`: of tokens before these; `gates` [b h n]: how much of the
        sums is left with each token, of which they take in the rest. [peng2021 eq.7]
        """
        with without_autocast(q):
            (q, k, v), given = self._prepared(q, k, v), v.dtype
            scale = q.shape[-1] ** -0.5 if scale is None else scale
            if gates is None and (programs := self._programs(q, v)):
                before = () if sums is None else sums[:2]
                o, after, size = programs.looking_back(q, k, v, self.features.directions, real, scale, *before)
                seen = torch.full_like(size, k.shape[2]) if real is None else real.sum(1).view(-1, 1, 1, 1).to(size)
                return o.to(given), Sums(after, size, seen.expand_as(size) + (0 if sums is None else sums.seen))
            shown, parts, sums = _shown(real, k), [], sums or self._nothing(q, v)
            if gates is not None:
                gates = widened(gates).masked_fill(~shown[..., 0], 1.0)  # padding fades nothing
            for part in self._segments(q):
                gate = None if gates is None else gates[:, :, part]
                segment = (x[:, :, part] for x in (q, k, v, shown))
                o, *after = _again(self._looking_back, scale, gate, *segment, *sums)
                sums = Sums(*after)
                parts.append(o)
        return torch.cat(parts, 2).to(given), sums

    def _looking_back(
        self, scale: float, gates: Tensor | None, q: Tensor, k: Tensor, v: Tensor, real: Tensor, *before: Tensor
    ) -> tuple[Tensor, ...]:
        made, size = self.features(torch.cat([q, k]), scale)  # at once: a host that is slow calls half as often
        queries, keys = made.chunk(2)
        values, sums = self._weighed(None if size is None else size[len(q) :], v, real, Sums(*before))
        if gates is None:
            read, after = prefix_sums(queries, keys, values, sums.of_values)
            seen = sums.seen + real.to(sums.seen.dtype).cumsum(2)
        else:
            read, after = fading_sums(queries, keys, values, gates, sums.of_values)
            seen = 1 - (1 - sums.seen) * left_after(gates)[..., None]
        return self._ratio(read, seen, v.shape[-1]), after, sums.largest, seen[:, :, -1:]

    def _gathered(self, scale: float, k: Tensor, v: Tensor, real: Tensor, *before: Tensor) -> Sums:
        keys, size = self.features(k, scale)
        values, sums = self._weighed(size, v, real, Sums(*before))
        seen = sums.seen + real.to(sums.seen.dtype).sum(2, keepdim=True)
        return Sums(sums.of_values + keys.transpose(-1, -2) @ values, sums.largest, seen)

    def _read(self, scale: float, width: int, q: Tensor, *sums: Tensor) -> Tensor:
        queries, (of_values, _, seen) = self.features(q, scale)[0], sums
        return self._ratio(queries @ of_values.to(queries.dtype), seen, width)

    def _weighed(self, size: Tensor | None, v: Tensor, real: Tensor, sums: Sums) -> tuple[Tensor, Sums]:
        """Values that carry what features of keys were made smaller by; the sums before, on the same footing."""
        weights = real.to(v.dtype).expand(*v.shape[:3], 1)
        if size is not None:
            size = size.masked_fill(~real, -torch.inf)
            largest = torch.maximum(size.detach().amax(2, keepdim=True), sums.largest)  # [b h 1 1]
            weights = (size - largest).exp().to(v.dtype)
            sums = Sums(sums.of_values * (sums.largest - largest).exp(), largest, sums.seen)
        # Columns of weights alone gather the denominator: one would do, but eight at a time suit a GPU.
        return torch.cat([v * weights, weights.expand(*weights.shape[:-1], beside(v.shape[-1]))], -1), sums

    def _ratio(self, read: Tensor, seen: Tensor, width: int) -> Tensor:
        below = widened(read[..., width : width + 1])
        below = torch.maximum(below, seen.expand_as(below) * self.features.least)
        return (read[..., :width] / below.masked_fill(below < 1e-30, 1.0)).to(read.dtype)

    def _nothing(self, q: Tensor, v: Tensor) -> Sums:
        wide, shape = torch.promote_types(q.dtype, torch.float32), q.shape[:2]
        none = torch.zeros(*shape, self.features.count, v.shape[-1] + beside(v.shape[-1]), dtype=wide, device=q.device)
        return Sums(none, none.new_full((*shape, 1, 1), -1e30), none.new_zeros(*shape, 1, 1))

    def _prepared(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A key/value head for each query head, all in bfloat16 where a GPU multiplies that, otherwise wide."""
        shared_by = q.shape[1] // k.shape[1]
        if shared_by > 1:
            k, v = k.repeat_interleave(shared_by, 1), v.repeat_interleave(shared_by, 1)
        if q.is_cuda and q.dtype == torch.bfloat16:
            return q, k, v
        return widened(q), widened(k), widened(v)

    def _programs(self, q: Tensor, v: Tensor) -> ModuleType | None:
        """What does it on a GPU, for positive features of keys and values that are not too wide."""
        if not (isinstance(self.features, PositiveFeatures) and is_served(q)):
            return None
        from qkv.parts.attention.kernels import positive_triton  # Triton comes with torch's builds for GPUs only

        return positive_triton if positive_triton.fits(q, v) else None

    def _segments(self, x: Tensor) -> Iterator[slice]:
        chunks = SEGMENT // (x.shape[0] * x.shape[1] * self.features.count * CHUNK)
        tokens = CHUNK * max(1, min(CHUNKS, chunks))
        return (slice(first, first + tokens) for first in range(0, x.shape[2], tokens))


def _shown(real: Tensor | None, k: Tensor) -> Tensor:
    """Which keys are no padding. [b 1 k 1]"""
    return torch.ones_like(k[:1, :1, :, :1], dtype=torch.bool) if real is None else real[:, None, :, None]


def _again(compute: Callable[..., Any], *given: Any) -> Any:
    """compute(*given), and once more when its gradients are asked for: nothing within it is kept until then."""
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in given):
        return checkpoint(compute, *given, use_reentrant=False, preserve_rng_state=False)
    return compute(*given)
