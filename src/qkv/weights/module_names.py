"""The names that another library gives to our linear maps, for files that hold something about maps and no model."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from qkv.errors import QkvError
from qkv.models.catalogue import Model, head_of
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import PublishedFamily, family_of
from qkv.weights.rules import Map, Rename, Split, SplitColumns, Transpose

WEIGHT = ".weight"
WITHOUT_HEAD = ("states", "embedding")  # published without a head, and so without the prefix that goes with one


@dataclass(frozen=True)
class TheirMap:
    """A linear map of theirs, and those of ours that it holds one below the other."""

    name: str
    ours: tuple[str, ...]
    turned: bool = False  # theirs is kept as [inputs outputs]


def has_published_form(model: Model) -> bool:
    return any(published.family == model.family for published in PUBLISHED.values())


def their_maps(model: Model, ours: Collection[str]) -> list[TheirMap]:
    """Their maps for these of ours; for a family that nobody else has, our own names."""
    if not has_published_form(model):
        return [TheirMap(name, (name,)) for name in ours]
    published = family_of(model, PUBLISHED)
    tensors = {name + WEIGHT for name in ours}
    found = []
    for rule in _rules(model, published):
        if type(rule) not in (Rename, Transpose, Split, SplitColumns):
            continue
        assert isinstance(rule, Rename | Split)
        for index in _indices(rule.our_names, tensors):
            names = [name.format(index).removesuffix(WEIGHT) for name in rule.our_names]
            theirs = _shown(model, published, rule.theirs.format(index).removesuffix(WEIGHT))
            found.append(TheirMap(theirs, tuple(names), isinstance(rule, Transpose | SplitColumns)))
    placed = {name for one in found for name in one.ours}
    for name in ours:
        if name not in placed:
            raise QkvError(f"The map {name} has no name of its own in a published {published.model_type}.")
    return found


def rules_for(model: Model, ours: Collection[str]) -> Map:
    """The rules for exactly these tensors of ours, by the names that their file has."""
    if not has_published_form(model):
        return [Rename(name, name) for name in ours]
    published = family_of(model, PUBLISHED)
    rules = []
    for rule in _rules(model, published):
        if isinstance(rule, Rename | Split) and set(rule.our_names) <= set(ours):
            rules.append(rule)
    return rules


def _rules(model: Model, published: PublishedFamily) -> Map:
    return published.rules(model.sizes, head_of(model))


def _shown(model: Model, published: PublishedFamily, name: str) -> str:
    head = head_of(model)
    alone = head is not None and head.kind in WITHOUT_HEAD
    return name.removeprefix(published.base) if alone else name


def _indices(names: tuple[str, ...], tensors: Collection[str]) -> list[str]:
    """The layers at which any of the names is among the tensors; one empty index where names have no layer."""
    patterns = [re.compile(re.escape(name).replace(r"\{\}", r"(\d+)")) for name in names]
    matches = [match for pattern in patterns for tensor in tensors if (match := pattern.fullmatch(tensor))]
    return sorted({match[1] if match.groups() else "" for match in matches}, key=lambda index: int(index or 0))
