"""For kernels that read whole rows and know few rules, look-ahead and padding above all: what a mask asks of them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from qkv.errors import QkvError
from qkv.parts.attention.visibility import (
    Both,
    Causal,
    Chunks,
    Either,
    Everything,
    Fixed,
    GlobalTokens,
    Mask,
    Not,
    NotPadding,
    Rule,
    SameDocument,
)


def looks_ahead(mask: Mask | None, *known: type[Rule]) -> bool:
    """Whether a look-ahead mask holds between the tokens of one row.

    Any rule is refused but that, padding, and those that the kernel says are `known` to it.
    """
    if mask is None or mask.flag == "all":
        return False
    rules = rules_of(mask.rule)
    for rule in rules:
        if not isinstance(rule, (Everything, Causal, NotPadding, *known)):
            raise QkvError(f"This kernel sees all keys of a row or all before a query, not {rule}: use another kernel.")
    if not any(isinstance(rule, Causal) for rule in rules):
        return False
    if mask.query.start >= mask.key.start + mask.key.size - 1:
        return False  # a cached step: all keys lie in the past
    if (mask.query.start, mask.query.size) != (mask.key.start, mask.key.size):
        raise QkvError("This kernel takes a whole row, or one token after a cache, under a look-ahead mask.")
    return True


def real_keys(mask: Mask | None) -> Tensor | None:
    """Which keys are no padding, where the rule asks. [b k]"""
    if mask is None or mask.key.documents is None:
        return None
    return mask.key.documents > 0 if any(isinstance(rule, NotPadding) for rule in rules_of(mask.rule)) else None


@dataclass(frozen=True, eq=False)
class Documents:
    """The numbers of the documents [b n], 0 for padding, and whether documents are kept `apart`."""

    numbers: Tensor
    apart: bool


def documents_of(mask: Mask | None) -> Documents | None:
    """What a mask over one row says of padding and of documents packed into it; None: all see all."""
    if mask is None:
        return None
    apart = any(isinstance(rule, SameDocument) for rule in rules_of(mask.rule))
    if apart and mask.key.documents is None:
        raise QkvError("SameDocument needs document numbers for queries and keys: give Tokens(documents=...).")
    if mask.key.documents is None or (not apart and real_keys(mask) is None):
        return None
    return Documents(mask.key.documents, apart)


def rules_of(rule: Rule) -> list[Rule]:
    """The rules that all hold together."""
    return [*rules_of(rule.first), *rules_of(rule.second)] if isinstance(rule, Both) else [rule]


def counts_slots(rule: Rule) -> bool:
    """Whether it matters to a rule at which slot a text begins: what stands before it in a row then changes it."""
    if isinstance(rule, Both | Either):
        return counts_slots(rule.first) or counts_slots(rule.second)
    return counts_slots(rule.rule) if isinstance(rule, Not) else isinstance(rule, Fixed | Chunks | GlobalTokens)
