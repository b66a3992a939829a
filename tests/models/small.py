"""Any family at a size that a test can afford."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn

from qkv.models.catalogue import FAMILIES, build
from qkv.models.sequence_to_sequence import SequenceToSequence

SMALL = 16  # a size up to this stays as published


def shrunk(sizes: Any, **given: Any) -> Any:
    """Published sizes made small: two layers, two heads, widths that keep their order and stay different if they were.

    A source with a vocabulary of its own gets another size than the target, so that no test takes one for the other.
    """
    whole = {field.name: getattr(sizes, field.name) for field in fields(sizes)}
    numbers = {name: value for name, value in whole.items() if isinstance(value, int) and not isinstance(value, bool)}
    fixed = {"vocabulary": 23, "source_vocabulary": 19, "experts": 4}
    small = {name: fixed[name] for name in numbers if name in fixed}
    small |= {name: 2 for name in numbers if name.endswith(("heads", "layers"))}
    rest = {name: value for name, value in numbers.items() if name not in small and value > SMALL}
    ranks = {value: rank for rank, value in enumerate(sorted(set(rest.values())))}
    small |= {name: 12 + 4 * ranks[value] for name, value in rest.items()}
    return replace(sizes, **{**small, **given})


# The families that turn one sequence into another; text models have a contract of their own.
TRANSLATORS = [name for name, family in FAMILIES.items() if not family.heads and family.reads == "text"]


def cases() -> dict[str, tuple[str, Any]]:
    """Every family at its first published size; twice where the source may share the target's vocabulary or not."""
    found = {}
    for name in TRANSLATORS:
        family = FAMILIES[name]
        sizes = shrunk(next(iter(family.published.values())))
        found[name] = (name, sizes)
        if hasattr(sizes, "source_vocabulary"):
            own = sizes.source_vocabulary is not None
            other = "one vocabulary" if own else "two vocabularies"
            found[f"{name}, {other}"] = (name, replace(sizes, source_vocabulary=None if own else 19))
    return found


CASES = cases()


def small_model(case: str) -> SequenceToSequence:
    """The model with noise on every parameter: fresh zeros and ones would hide a mix-up."""
    torch.manual_seed(0)
    model = build(*CASES[case]).eval()
    perturb(model)
    return model


@torch.no_grad()
def perturb(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.2)
