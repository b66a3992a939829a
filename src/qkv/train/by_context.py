"""How well a language model predicts, by how much text stands before what it predicts.

A model that cannot use what lies far back is as good with a long context as with a short one; this tells.

Shapes: b rows, n tokens that the model reads, k stretches of context, v vocabulary.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from qkv.data.doubles import doubled
from qkv.data.packing import LanguageBatch
from qkv.errors import QkvError
from qkv.models.text_model import TextModel
from qkv.parts.position import positions_in_documents
from qkv.parts.precision import widened
from qkv.train.objectives.language import LanguageLoss

FIRST = 64  # tokens of the shortest stretch, where rows are long enough


@dataclass(frozen=True)
class ContextBits:
    """The tokens that have `least` to `most` tokens of their document before them in their row."""

    least: int
    most: int
    tokens: int
    bits_per_byte: float


def context_edges(length: int) -> list[int]:
    """0, 64, 128, 256, ... up to the length: each stretch of context is as long as all before it."""
    if length < 1:
        raise QkvError(f"A row must have at least 1 token to read, but {length} were asked for.")
    edges = [0, max(1, min(FIRST, length // 8))]
    while 2 * edges[-1] < length:
        edges.append(2 * edges[-1])
    return edges if edges[-1] == length else [*edges, length]


def bits_by_context(model: TextModel, batches: Iterable[LanguageBatch], length: int) -> list[ContextBits]:
    """Bits per byte for each stretch of context; those that no token has are left out.

    A token counts as many bytes as one of these texts has on average: for a tokenizer of bytes that is what it has.
    """
    device = next(model.parameters()).device
    edges = torch.tensor(context_edges(length), device=device)  # [k+1]
    sums = doubled(torch.zeros(len(edges) - 1, device=device))  # [k] nats
    counts = torch.zeros_like(sums, dtype=torch.long)  # [k]
    predicted = bytes_predicted = 0
    for batch in batches:
        found = LanguageLoss().predictions(model, batch.to(device))
        flat = widened(found.logits).flatten(0, 1)  # [b·n v]
        losses = doubled(F.cross_entropy(flat, found.wanted.flatten(), reduction="none"))  # [b·n]
        before = positions_in_documents(batch.documents.to(device)[:, :-1]) + 1  # [b n]
        stretch = torch.bucketize(before, edges) - 1  # [b n] so that `edges[i] < before <= edges[i + 1]`
        stretch, real = stretch.to(sums.device), found.real.flatten().to(sums.device)
        sums.index_add_(0, stretch.flatten()[real], losses[real])
        counts += torch.bincount(stretch.flatten()[real], minlength=len(counts))
        predicted, bytes_predicted = predicted + batch.predicted, bytes_predicted + batch.bytes
    if not predicted:
        raise QkvError("There is no text to measure on: it must hold at least one token to predict.")
    bytes_each = bytes_predicted / predicted
    ends = edges.tolist()
    return [
        ContextBits(low + 1, high, count, total / math.log(2) / (count * bytes_each))
        for low, high, count, total in zip(ends, ends[1:], counts.tolist(), sums.tolist(), strict=False)
        if count
    ]
