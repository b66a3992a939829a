"""Rules that are bands: what a query sees follows from how far before it a key stands, and from nothing else."""

from __future__ import annotations

from qkv.parts.attention.visibility import Both, Causal, Everything, Mask, NotPadding, Rule, Window

FAR = 2**30  # slots; no row is as long


def band_of(mask: Mask) -> tuple[int, int] | None:
    """The least and the most slots that a key may stand before its query, both counted in the mask's own tables.

    None where the rule is no band: it looks at documents, leaves out slots in between, or joins several bands.
    """
    if mask.query.documents is not None or mask.key.documents is not None:
        return None
    found = _band(mask.rule)
    if found is None:
        return None
    apart = mask.query.start - mask.key.start
    return found[0] - apart, found[1] - apart


def _band(rule: Rule) -> tuple[int, int] | None:
    if isinstance(rule, Everything | NotPadding):
        return -FAR, FAR
    if isinstance(rule, Causal):
        return 0, FAR
    if isinstance(rule, Window) and rule.step == 1:
        return 1 - rule.size, rule.size - 1
    if isinstance(rule, Both):
        first, second = _band(rule.first), _band(rule.second)
        if first is not None and second is not None:
            return max(first[0], second[0]), min(first[1], second[1])
    return None
