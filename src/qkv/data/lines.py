"""Texts one behind the other in a single row: batches without padding, for models that only read.

Shapes: n texts of a batch, s tokens of all of them together.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qkv.data.rows import TensorBatch
from qkv.data.text_rows import TextRows
from qkv.data.token_rows import Ints, offsets_of, places_of, stretches_of


@dataclass(frozen=True)
class LineBatch(TensorBatch):
    """Whole texts, special tokens included. What is said of them is made here, beside the work of the device."""

    ids: Tensor  # [1 s] long
    segments: Tensor | None  # [1 s] long; None: all 0
    documents: Tensor  # [1 s] long: the number of each token's text, from 1 on
    positions: Tensor  # [1 s] long: from 0 on in each text
    bounds: Tensor  # [n + 1] int32: where each text begins, and where the last one ends
    lengths: tuple[int, ...]  # of the texts


def line_batches(rows: TextRows, most: int) -> Iterator[tuple[Ints, LineBatch]]:
    """Every text once, the longest first, at most `most` tokens together, with the texts' original places.

    Neighbours are of like length, as many of one length as there are: kernels read those as a rectangle.
    """
    lengths = rows.tokens.lengths
    order = np.argsort(-lengths, kind="stable")
    for first, last in stretches_of(lengths[order], most):
        chosen = order[first:last]
        yield rows.original[chosen], line_batch(rows, chosen)


def line_batch(rows: TextRows, chosen: Ints) -> LineBatch:
    """These texts in the order that is given."""
    lengths = rows.tokens.lengths_of(chosen)
    bounds, places = offsets_of(lengths), places_of(rows.tokens.offsets[chosen], lengths)
    segments = None if rows.segments is None else _row(rows.segments.ids[places])
    return LineBatch(
        ids=_row(rows.tokens.ids[places]),
        segments=segments,
        documents=_row(np.repeat(np.arange(1, len(chosen) + 1), lengths)),
        positions=_row(places_of(np.zeros_like(lengths), lengths)),
        bounds=torch.from_numpy(bounds.astype(np.int32)),
        lengths=tuple(lengths.tolist()),
    )


def _row(values: np.ndarray) -> Tensor:
    """[s] → [1 s]"""
    return torch.from_numpy(values.astype(np.int64))[None]
