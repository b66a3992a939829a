"""Where a token stands: positions added to the stream, turned into queries and keys, or added to scores.

Shapes: b rows, s slots, h heads, d width (of a head for rotary positions), q queries, k keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import QkvError, nearest_or_all
from qkv.parts.attention.visibility import Tokens
from qkv.parts.precision import narrowed, widened
from qkv.parts.spec import Depends
from qkv.parts.unrounded import Unrounded

Arrange = Callable[[Tensor, Tensor], Tensor]


def interleaved(sines: Tensor, cosines: Tensor) -> Tensor:
    """sin, cos, sin, cos, …: as the paper writes it. [vaswani2017 §3.5]"""
    return torch.stack((sines, cosines), -1).flatten(-2)


def halves(sines: Tensor, cosines: Tensor) -> Tensor:
    """All sines, then all cosines: as Marian and tensor2tensor compute it. [junczysdowmunt2018]"""
    return torch.cat((sines, cosines), -1)


def sinusoids(length: int, width: int, arrange: Arrange = interleaved) -> Tensor:
    """PE(p, 2i) = sin(p / 10000^(2i/d)) and PE(p, 2i+1) = cos(…) [vaswani2017 §3.5]. [length width]"""
    rates = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)  # [d/2]
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates  # [length d/2]
    return arrange(angles.sin(), angles.cos()).float()


class Sinusoidal(nn.Module):
    """Fixed sinusoids added to the stream. Any length: the table grows when a longer row comes."""

    depends_on = Depends("width", "arrange", "table")

    table: Tensor

    def __init__(self, width: int, arrange: Arrange = interleaved, length: int = 1024) -> None:
        super().__init__()
        if width % 2:
            raise QkvError(f"Sinusoidal positions pair a sine with a cosine, so width {width} must be even.")
        self.width, self.arrange = width, arrange
        self.register_buffer("table", sinusoids(length, width, arrange), persistent=False)

    def forward(self, positions: Tensor, longest: int) -> Tensor:
        """positions [b s] or [s], each below `longest` → [b s d] or [s d]"""
        if longest > len(self.table):
            with torch.inference_mode(False):  # a table first grown while decoding serves training later
                self.table = sinusoids(2 * longest, self.width, self.arrange).to(self.table)
        return self.table[positions]


class Learned(nn.Module):
    """One learned vector a position, up to a fixed length. Those before `first` belong to no position."""

    depends_on = Depends("weight", first=0)

    def __init__(self, length: int, width: int, first: int = 0) -> None:
        super().__init__()
        self.first = first
        self.weight = nn.Parameter(torch.randn(first + length, width) * 0.02)

    def forward(self, positions: Tensor, longest: int) -> Tensor:
        if longest > (learned := len(self.weight) - self.first):
            raise QkvError(f"This model has learned {learned} positions and the input needs {longest}.")
        return F.embedding(positions + self.first if self.first else positions, self.weight)


Resample = Callable[[Tensor, tuple[int, int]], Tensor]


def bicubic(grid: Tensor, size: tuple[int, int]) -> Tensor:
    """[1 d r c] → [1 d *size], through the cubics of the nearest sixteen: as transformers does it."""
    return F.interpolate(grid, size=size, mode="bicubic", align_corners=False)


def bicubic_antialiased(grid: Tensor, size: tuple[int, int]) -> Tensor:
    """The same, but a coarser grid is made from all that it covers, by another cubic: as timm does it."""
    return F.interpolate(grid, size=size, mode="bicubic", align_corners=False, antialias=True)


# By the names that saved configurations use.
RESAMPLINGS: dict[str, Resample] = {"bicubic": bicubic, "bicubic_antialiased": bicubic_antialiased}


def find_resampling(name: str) -> Resample:
    if name not in RESAMPLINGS:
        raise QkvError(f"There is no resampling called {name}: {nearest_or_all(name, RESAMPLINGS)}")
    return RESAMPLINGS[name]


class Learned2D(nn.Module):
    """Learned positions of a grid of patches, interpolated to any other grid. [dosovitskiy2021 §3.2]

    `prefix` positions (such as the class token's) stand before the grid and are never interpolated.
    """

    depends_on = Depends("rows", "columns", "prefix", "resample", "weight")

    def __init__(self, rows: int, columns: int, width: int, prefix: int = 0, resample: Resample = bicubic) -> None:
        super().__init__()
        self.rows, self.columns, self.prefix, self.resample = rows, columns, prefix, resample
        self.weight = nn.Parameter(torch.randn(prefix + rows * columns, width) * 0.02)

    def forward(self, rows: int, columns: int) -> Tensor:
        """The positions for a grid of this size. [prefix + rows·columns d]"""
        if (rows, columns) == (self.rows, self.columns):
            return self.weight
        grid = self.weight[self.prefix :].T.unflatten(1, (self.rows, self.columns))[None]  # [1 d r c]
        grid = self.resample(widened(grid), (rows, columns)).to(grid.dtype)
        return torch.cat((self.weight[: self.prefix], grid[0].flatten(1).T))


Pairing = Callable[[Tensor, Tensor, Tensor], Tensor]


def rotate_neighbours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (0,1), (2,3), …: as the paper writes it. [su2021 eq.34]"""
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)  # [… d/2] each
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (0,d/2), (1,d/2+1), …: the same rotation with the dimensions in another order."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def rotary_rates(width: int, base: float = 10000.0) -> Tensor:
    """θ_i = base^(-2i/d) [su2021 eq.15]. [d/2], float64"""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def interpolated_rates(rates: Tensor, factor: float) -> Tensor:
    """Positions squeezed by `factor`, so that a longer row fits the trained range. [chen2023 eq.4]"""
    return rates / factor


def ntk_rates(width: int, base: float, factor: float) -> Tensor:
    """A larger base: the slowest pair is squeezed by `factor`, the fastest not at all. [peng2023 def.1]"""
    return rotary_rates(width, base * factor ** (width / (width - 2)))


def llama3_rates(rates: Tensor, factor: float, trained: int, slow: float = 1.0, fast: float = 4.0) -> Tensor:
    """Pairs squeezed by how often they turn within the `trained` positions: as Llama 3.1 does. [grattafiori2024 §3.2]

    Those that turn less than `slow` times are squeezed by the whole `factor`, those that turn more than `fast` times
    not at all, those between by something between.
    """
    turns = trained * rates / (2 * math.pi)
    kept = ((turns - slow) / (fast - slow)).clamp(0, 1)
    return kept * rates + (1 - kept) * interpolated_rates(rates, factor)


def yarn_rates(width: int, base: float, factor: float, trained: int, slow: float = 1.0, fast: float = 32.0) -> Tensor:
    """Slow pairs squeezed by the whole `factor`, fast ones not at all, those between in part. [peng2023 def.2]

    DIFFERS [peng2023]: between the two, the share falls with the number of the pair and not of its turns, and the
    bounds are rounded outwards, as in the code that was published with the paper and trained with.
    """

    def pair(turns: float) -> float:
        """The pair, as a fraction of them, that turns so often within the trained positions."""
        return width * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

    rates = rotary_rates(width, base)
    first, last = max(math.floor(pair(fast)), 0), min(math.ceil(pair(slow)), width - 1)
    squeezed = ((torch.arange(width // 2, dtype=torch.float64) - first) / (last - first or 0.001)).clamp(0, 1)
    return (1 - squeezed) * rates + squeezed * interpolated_rates(rates, factor)


def yarn_sharpness(factor: float) -> float:
    """√(1/t): what queries and keys are multiplied by where positions are squeezed. [peng2023 def.3]"""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


class Rotary(Unrounded):
    """Rotary positions: queries and keys turned by an angle that grows with the position. [su2021 eq.14]

    The score of a query and a key then depends on the distance between them only. `rates` [n] gives the angle a
    position turns each of the first n pairs; with fewer pairs than a head has, the rest of the head is left as it is.
    """

    depends_on = Depends("pairing", "rates")

    rates: Tensor

    def __init__(self, rates: Tensor, pairing: Pairing = rotate_neighbours) -> None:
        super().__init__()
        self.pairing = pairing
        self.register_buffer("rates", rates, persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [b h s d], positions [b s] or [s] → [b h s d]"""
        angles = positions[..., None].to(self.rates.device, self.rates.dtype) * self.rates  # [b s n] or [s n]
        if positions.ndim == 2:
            angles = angles[:, None]  # [b 1 s n]
        turned = 2 * len(self.rates)
        wide = widened(x[..., :turned])
        cos, sin = (turn.to(wide.dtype).to(wide.device) for turn in (angles.cos(), angles.sin()))
        y = self.pairing(wide, cos, sin).to(x.dtype)
        return y if turned == x.shape[-1] else torch.cat((y, x[..., turned:]), -1)


class RelativeBuckets(nn.Module):
    """A learned bias for each bucket of distances and each head. [raffel2020 §2.1]

    Half of the buckets are one distance each, the other half widen logarithmically up to `farthest`. Under autocast
    the bias is as narrow as the queries, which lets kernels be fast: each number is rounded for itself, and distances
    that differ by a step of a narrow number do not exist, as they do where a bias grows with the distance.
    """

    depends_on = Depends("buckets", "farthest", "looks_ahead", "weight")

    def __init__(self, heads: int, buckets: int = 32, farthest: int = 128, *, looks_ahead: bool) -> None:
        super().__init__()
        self.buckets, self.farthest, self.looks_ahead = buckets, farthest, looks_ahead
        self.weight = nn.Parameter(torch.randn(buckets, heads) * 0.02)

    def bucket(self, distance: Tensor) -> Tensor:
        """distance = key index − query index, any shape → bucket numbers"""
        if self.looks_ahead:  # one half of the buckets for keys before the query, the other for keys after it
            buckets = self.buckets // 2
            offset, distance = (distance > 0) * buckets, distance.abs()
        else:
            buckets, offset, distance = self.buckets, torch.zeros_like(distance), (-distance).clamp(min=0)
        exact = buckets // 2
        log_share = torch.log(distance.float().clamp(min=1) / exact) / math.log(self.farthest / exact)
        widening = (exact + (log_share * (buckets - exact)).long()).clamp(max=buckets - 1)
        return offset + torch.where(distance < exact, distance, widening)

    def table(self) -> Tensor:
        """The biases that are looked up. [buckets h]"""
        return self.weight

    def forward(self, query: Tokens, key: Tokens) -> Tensor:
        """[1 h q k]"""
        if query.size == 1:  # a step of a cache, whose slot a device alone may know
            distances = _distances(query, key, self.weight.device)[0]  # [k]
            return narrowed(F.embedding(self.bucket(distances), self.table()).T.contiguous())[None, :, None]
        least = key.start - (query.start + query.size - 1)
        distances = torch.arange(least, least + query.size + key.size, device=self.weight.device)  # [q+k], one too many
        values = F.embedding(self.bucket(distances), self.table()).T  # [h q+k]
        return narrowed(_along_rows(values, query.size)).contiguous()[None]


def _along_rows(values: Tensor, queries: int) -> Tensor:
    """The value of each distance, where it belongs: a row for each query, one distance less from row to row.

    Rows that are one shorter than what is written into them begin one later each time. Looking all up would be simpler,
    but the gradient of so many lookups of so few numbers is slow on a GPU. [h q+k] → [h q k]
    """
    less = values.shape[1] - 1
    rows = values[:, None].expand(-1, queries, -1).flatten(1)  # [h q·(q+k)]
    return rows[:, : queries * less].unflatten(1, (queries, less))[:, :, queries - 1 :]


class ALiBi(Unrounded):
    """A bias that falls linearly with distance, at a slope of its own for each head. [press2022 §3]"""

    depends_on = Depends("slopes")

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(heads), persistent=False)

    def forward(self, query: Tokens, key: Tokens) -> Tensor:
        """[1 h q k]"""
        distance = _distances(query, key, self.slopes.device).abs()
        return -self.slopes[None, :, None, None] * distance


def alibi_slopes(heads: int) -> Tensor:
    """2^(-8/h), 2^(-16/h), … [press2022 §3]. [h]

    For h not a power of two: those of the next lower power, then every other one of the next higher.
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    slopes += [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * (heads - power), 2)]
    return torch.tensor(slopes)


def _distances(query: Tokens, key: Tokens, device: torch.device) -> Tensor:
    """key index − query index. [q k]"""
    return key.index(device)[None] - query.index(device)[:, None]


def positions_in_documents(documents: Tensor) -> Tensor:
    """Positions that start again at 0 with each document, and are 0 on padding. documents [b s] → [b s]"""
    slots = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    starts = torch.ones_like(documents, dtype=torch.bool)
    starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    first = torch.where(starts, slots, 0).cummax(1).values  # slot where the own document began
    return (slots - first) * (documents > 0)
