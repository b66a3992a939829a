"""The heads of GPT-like models, which transformers names alike in all of them."""

from __future__ import annotations

from collections.abc import Sequence

from qkv.models.head_choice import HeadChoice
from qkv.weights.rules import Copy, Map, Rename, rename_modules


def decoder_head_rules(head: HeadChoice, language: Sequence[Copy | Rename]) -> Map:
    """`language` are the rules of the family's own logits, which differ by whether they are tied."""
    if head.kind == "language":
        return list(language)
    if head.kind == "classification":
        return [Rename("score.weight", "head.out.weight")]
    if head.kind == "tokens":
        return list(rename_modules([("classifier", "head.out")]))
    if head.kind == "spans":
        return list(rename_modules([("qa_outputs", "head.out")]))
    return []
