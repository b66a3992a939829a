"""Rules that are bands: what a query sees follows from how far before it a key stands, and from its document.

Shapes: r rows, q queries, k keys, n tiles along one side.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.parts.attention.blocks import TILE
from qkv.parts.attention.visibility import Both, Causal, Everything, Mask, Not, NotPadding, Rule, SameDocument, Window
from qkv.parts.attention.whole_rows import rules_of

FAR = 2**30  # slots; no row is as long


@dataclass(frozen=True, eq=False)
class Runs:
    """Documents of a batch: a query sees keys of its own number, and no one sees number 0.

    For each tile of one side, the first slot of the other that it may meet and the one after the last: [r n 2].
    """

    of_queries: Tensor  # [r q] int32
    of_keys: Tensor  # [r k] int32
    keys_met: Tensor
    queries_met: Tensor

    @staticmethod
    def of(queries: Tensor, keys: Tensor) -> Runs:
        """Of the numbers [r q] and [r k]. Nothing here makes a device wait."""
        queries, keys = queries.int(), keys.int()
        return Runs(queries, keys, _met(queries, keys), _met(keys, queries))


@dataclass(frozen=True, eq=False)
class Band:
    """The least and the most slots that a key may stand before its query, both counted in the mask's own tables."""

    least: int
    most: int
    runs: Runs | None = None  # None: documents do not matter


def band_of(mask: Mask) -> Band | None:
    """None where the rule is no band: it leaves out slots in between, or joins several bands."""
    return mask.lowered("band", lambda: _find(mask))


def _find(mask: Mask) -> Band | None:
    distances = _distances(mask.rule)
    if distances is None:
        return None
    apart = mask.query.start - mask.key.start
    least, most = distances[0] - apart, distances[1] - apart
    queries, keys = mask.query.documents, mask.key.documents
    rules = rules_of(mask.rule)
    if any(isinstance(rule, SameDocument) for rule in rules):
        if queries is None or keys is None:
            return None  # the rule itself says what it misses
        return Band(least, most, Runs.of(queries, keys))
    if keys is None or not any(isinstance(rule, NotPadding) for rule in rules):
        return Band(least, most)
    real = keys > 0
    # Of a row without any it is the same whether queries look for them; all ones would be folded into a single number,
    # for which torch 2.11 compiles no search.
    return Band(least, most, Runs.of(real.any(1, keepdim=True).expand(-1, mask.query.size), real))


def _distances(rule: Rule) -> tuple[int, int] | None:
    if isinstance(rule, Everything | NotPadding | SameDocument):
        return -FAR, FAR
    if isinstance(rule, Causal):
        return 0, FAR
    if isinstance(rule, Window) and rule.step == 1:
        return 1 - rule.size, rule.size - 1
    if isinstance(rule, Both):
        first, second = _distances(rule.first), _distances(rule.second)
        if first is not None and second is not None:
            return max(first[0], second[0]), min(first[1], second[1])
        for band, other in ((first, rule.second), (second, rule.first)):
            hidden = other.rule if isinstance(other, Not) else None
            if band is not None and band[0] >= 0 and isinstance(hidden, Window) and hidden.step == 1:
                return max(band[0], hidden.size), band[1]
    return None


def _met(numbers: Tensor, others: Tensor) -> Tensor:
    """For each tile of `numbers` [r q], where in `others` [r k] its numbers begin and end. [r n 2] int32"""
    ordered, places = others.sort(dim=1, stable=True)
    numbers = numbers.contiguous()
    left = torch.searchsorted(ordered, numbers)  # [r q]
    right = torch.searchsorted(ordered, numbers, right=True)
    nowhere = (left == right) | (numbers == 0)
    size = others.shape[1]
    first = places.gather(1, left.clamp(max=size - 1)).masked_fill(nowhere, size)
    last = (places.gather(1, (right - 1).clamp(min=0)) + 1).masked_fill(nowhere, 0)
    rest = -numbers.shape[1] % TILE
    first = F.pad(first, (0, rest), value=size).unflatten(1, (-1, TILE)).amin(2)  # [r n]
    last = F.pad(last, (0, rest)).unflatten(1, (-1, TILE)).amax(2)
    return torch.stack((first, last), -1).int()
