"""For kernels that read whole rows and know two rules only, look-ahead and padding: what a mask asks of them."""

from __future__ import annotations

from torch import Tensor

from qkv.errors import QkvError
from qkv.parts.attention.visibility import Both, Causal, Everything, Mask, NotPadding, Rule


def looks_ahead(mask: Mask | None) -> bool:
    """Whether a look-ahead mask holds between the tokens of one row; any rule but that and padding is refused."""
    if mask is None or mask.flag == "all":
        return False
    rules = _rules(mask.rule)
    for rule in rules:
        if not isinstance(rule, Everything | Causal | NotPadding):
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
    return mask.key.documents > 0 if any(isinstance(rule, NotPadding) for rule in _rules(mask.rule)) else None


def _rules(rule: Rule) -> list[Rule]:
    return [*_rules(rule.first), *_rules(rule.second)] if isinstance(rule, Both) else [rule]
