"""What can stand in the place of a self-attention or of its kernel, made of the attention that stood there.

Each of these takes the model and the numbers of a spelling, and gives a function from an attention and its number among
those of the model to what takes its place.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from qkv.errors import QkvError
from qkv.parts.attention.attention import Attention, HeadOptions
from qkv.parts.attention.big_bird import DrawnBlocks
from qkv.parts.attention.gated import GatedAttention
from qkv.parts.attention.kernels.linformer import LinformerKernel, RowProjection
from qkv.parts.attention.kernels.lsh import LSHKernel
from qkv.parts.attention.kernels.random_features import (
    PositiveFeatures,
    RandomDirections,
    RandomFeatureKernel,
    WaveFeatures,
)
from qkv.parts.attention.shared import SharedAttention
from qkv.parts.attention.summing import SummingAttention
from qkv.parts.attention.visibility import Causal
from qkv.parts.attention.whole_rows import rules_of
from qkv.parts.linear import JoinedLinear
from qkv.parts.spec import Known, anything

# What is taken over from the attention that stood there.
SWAPPED = Known(
    Attention, "heads key_value_heads key_width value_width scale dropout", visibility=anything, rotary=anything,
    project=anything, out=anything,
)  # fmt: skip
MOST_FEATURES = 2**14
REDRAW_EVERY = 1000  # updates
Swap = Callable[[Attention, int], nn.Module]


def performer(model: nn.Module, features: int, redraw_every: int = REDRAW_EVERY) -> Swap:
    """Positive random features, drawn anew after so many updates of training. [choromanski2021 §2]"""
    _check_features(features)

    def swap(attention: Attention, number: int) -> Attention:
        return _by_features(attention, PositiveFeatures(features, attention.key_width, redraw_every=redraw_every))

    return swap


def rfa(model: nn.Module, features: int) -> Swap:
    """Random waves: with a memory that fades where tokens look back, without one where they look both ways, as the
    paper has it for decoders and for encoders. [peng2021 §3]"""
    _check_features(features)

    def swap(attention: Attention, number: int) -> Attention:
        if _looks_back(attention):
            return GatedAttention.of(attention, features)
        return _by_features(attention, WaveFeatures(features, attention.key_width, attention.heads))

    return swap


def linformer(model: nn.Module, tokens: int) -> Swap:
    """One projection for keys and values of all heads and layers: the paper's layerwise sharing. [wang2020 §4]"""
    shared = RowProjection(_longest(model), tokens)

    def swap(attention: Attention, number: int) -> Attention:
        attention.kernel = LinformerKernel(shared, shared)
        return attention

    return swap


def linformer_key_value(model: nn.Module, tokens: int) -> Swap:
    """A projection for each layer, of keys and of values: the paper's key-value sharing. [wang2020 §4]"""
    longest = _longest(model)

    def swap(attention: Attention, number: int) -> Attention:
        shared = RowProjection(longest, tokens)
        attention.kernel = LinformerKernel(shared, shared)
        return attention

    return swap


def linformer_headwise(model: nn.Module, tokens: int) -> Swap:
    """Two projections for each layer, of keys and of values, for all heads: the headwise sharing. [wang2020 §4]"""
    longest = _longest(model)

    def swap(attention: Attention, number: int) -> Attention:
        attention.kernel = LinformerKernel(RowProjection(longest, tokens), RowProjection(longest, tokens))
        return attention

    return swap


def _longest(model: nn.Module) -> int:
    longest: int | None = getattr(model, "longest", None)
    if longest is None:
        raise QkvError("Linformer projects rows of a known longest length, and this model reads rows of any.")
    return longest


def lsh(model: nn.Module, rounds: int, chunk: int) -> Swap:
    """Shared queries and keys, hashed; a row that looks both ways reads the chunk after its own too."""

    def swap(attention: Attention, number: int) -> SharedAttention:
        options = _options(attention)
        options["kernel"] = LSHKernel(chunk=chunk, rounds=rounds, after=0 if _looks_back(attention) else 1)
        options["key_value_heads"], options["scale"] = None, 1.0  # keys are unit vectors, whose scores need no scale
        new = SharedAttention(attention.project.width, attention.heads, rotary=attention.rotary, **options)
        _take_queries_and_values(new.project, attention)
        new.out = attention.out
        return new

    return swap


def big_bird(model: nn.Module, block: int, randoms: int = 3) -> Swap:
    """Blocks that see their neighbours, both ends, and others drawn by each layer for itself."""

    def swap(attention: Attention, number: int) -> DrawnBlocks:
        if attention.rotary is not None:
            raise QkvError("Attention between blocks reads by content alone, and this family turns queries and keys.")
        new = DrawnBlocks(
            attention.project.width,
            attention.heads,
            block=block,
            randoms=randoms,
            seed=number,
            **_options(attention),
        )
        new.project, new.out = attention.project, attention.out
        return new

    return swap


def _options(attention: Attention) -> HeadOptions:
    """What an attention was told when it was made."""
    return {
        "key_value_heads": attention.key_value_heads,
        "key_width": attention.key_width,
        "value_width": attention.value_width,
        "bias": "query" in attention.biases,
        "out_bias": attention.out.bias is not None,
        "key_bias": "key" in attention.biases,
        "dropout": attention.dropout,
        "scale": attention.scale,
        "visibility": attention.visibility,
    }


@torch.no_grad()
def _take_queries_and_values(new: JoinedLinear, attention: Attention) -> None:
    """Queries as they are; values that several query heads shared once for each of them."""
    shared_by = attention.heads // attention.key_value_heads
    old = attention.project
    for mine, theirs, sizes in ((new.weight, old.weight, old.outputs), (new.bias, old.bias, old.biases)):
        if mine is None or theirs is None:
            continue
        parts = dict(zip(sizes, theirs.split(list(sizes.values())), strict=True))
        values = parts["value"].unflatten(0, (attention.key_value_heads, -1))  # [g e …]
        mine.copy_(torch.cat((parts["query"], values.repeat_interleave(shared_by, 0).flatten(0, 1))))


def _looks_back(attention: Attention) -> bool:
    return any(isinstance(rule, Causal) for rule in rules_of(attention.visibility))


def _by_features(attention: Attention, features: RandomDirections) -> Attention:
    """The same attention, computed by features: where it looks back, a decoder keeps their sums. What forms no weights
    has none to drop: their dropout goes."""
    if _looks_back(attention):
        return SummingAttention.over(attention, features)
    attention.kernel, attention.dropout = RandomFeatureKernel(features), 0.0
    return attention


def _check_features(features: int) -> None:
    if features > MOST_FEATURES:
        raise QkvError(f"Random features are {MOST_FEATURES:,} at most, not {features:,}: exact attention costs less.")
