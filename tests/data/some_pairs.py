"""Pairs whose every cell tells which pair it is."""

import numpy as np

from qkv.data.pairs import Pairs


def some_pairs(count=400, seed=0):
    """Pair i holds the number 10 + i in every cell, so that a row is known wherever it turns up."""
    generator = np.random.default_rng(seed)
    sizes = generator.integers(0, 29, (count, 2))
    return Pairs.from_ids(
        [[10 + i] * s for i, (s, _) in enumerate(sizes)], [[10 + i] * t for i, (_, t) in enumerate(sizes)]
    )
