"""Attention records made without a model: random distributions that know where their largest weight is."""

from __future__ import annotations

import numpy as np

from qkv.look.maps import AttentionMap, AttentionRecord, Kind


def distributions(heads: int, queries: int, keys: int, seed: int, causal: bool = False) -> np.ndarray:
    scores = np.random.default_rng(seed).normal(scale=1.5, size=(heads, queries, keys))
    if causal:
        scores = np.where(np.tril(np.ones((queries, keys), dtype=bool)), scores, -np.inf)
    weights = np.exp(scores)
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


def fabricate(
    source: tuple[str, ...] = ("k", "n", "i", "g", "h", "t"),
    target: tuple[str, ...] = ("N", "AY", "T"),
    layers: int = 2,
    heads: int = 3,
) -> AttentionRecord:
    """What a Transformer's record of `source` -> `target` looks like."""
    read, written, fed = (*source, "</s>"), (*target, "</s>"), ("<s>", *target)
    maps = []
    for layer in range(layers):
        weights = distributions(heads, len(read), len(read), seed=layer)
        maps.append(AttentionMap(f"encoder.blocks.{layer}.attention.mixer", Kind.ENCODER, weights, read, read))
    for layer in range(layers):
        weights = distributions(heads, len(written), len(fed), seed=100 + layer, causal=True)
        maps.append(AttentionMap(f"decoder.blocks.{layer}.attention.mixer", Kind.DECODER, weights, written, fed))
        weights = distributions(heads, len(written), len(read), seed=200 + layer)
        maps.append(AttentionMap(f"decoder.blocks.{layer}.cross.mixer", Kind.CROSS, weights, written, read))
    return AttentionRecord("".join(source), " ".join(target), tuple(maps))
