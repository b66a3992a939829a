"""The families by name: the only place where a string becomes a model, for saved files and the command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from qkv.errors import QkvError, nearest_or_all
from qkv.models import marian, rnn, transformer
from qkv.models.sequence_to_sequence import SequenceToSequence


@dataclass(frozen=True)
class Family:
    """A way to build models: its sizes as a dataclass, its builder, and the sizes published with their paper."""

    name: str
    summary: str
    sizes_type: type
    build: Callable[[Any], SequenceToSequence]
    published: Mapping[str, Any]

    def sizes(self, values: Mapping[str, Any]) -> Any:
        """Sizes from plain values, as a configuration file holds them; an unknown or missing name is an error."""
        known = {field.name for field in fields(self.sizes_type)}
        for name in values:
            if name not in known:
                raise QkvError(f"Family {self.name} has no size called {name}: {nearest_or_all(name, sorted(known))}")
        try:
            sizes = self.sizes_type(**values)
        except TypeError as error:
            raise QkvError(f"Family {self.name} is missing sizes: {error}.") from error
        for field in fields(sizes):
            _check_size(self.name, field.name, str(field.type), getattr(sizes, field.name))
        return sizes


def _check_size(family: str, name: str, kind: str, value: Any) -> None:
    """A dataclass takes any value, and a model of -3 layers or of width "512" would fail far from here."""
    if value is None and "None" in kind:
        return
    if kind.startswith("int") and (type(value) is not int or value < 1):
        raise QkvError(f"The size {name} of family {family} must be a whole number above 0, but is {value!r}.")
    if kind == "float" and (type(value) not in (int, float) or not 0 <= value < (1 if "dropout" in name else math.inf)):
        least = "at least 0 and below 1" if "dropout" in name else "0 or more"
        raise QkvError(f"The size {name} of family {family} must be a number of {least}, but is {value!r}.")


_FAMILIES = [
    Family(
        "transformer",
        "the 2017 Transformer, norm after each sub-layer as published",
        transformer.TransformerSizes,
        transformer.transformer,
        transformer.SIZES,
    ),
    Family(
        "transformer-prenorm",
        "the same with the norm before each sub-layer",
        transformer.TransformerSizes,
        transformer.prenorm_transformer,
        transformer.SIZES,
    ),
    Family(
        "transformer-admin",
        "the same with Admin's balanced residuals",
        transformer.TransformerSizes,
        transformer.admin_transformer,
        transformer.SIZES,
    ),
    Family("marian", "the Transformer as published for translation", marian.MarianSizes, marian.marian, marian.SIZES),
    Family("rnn", "its predecessor: recurrent networks with additive attention", rnn.RNNSizes, rnn.rnn, rnn.SIZES),
]
FAMILIES = {family.name: family for family in _FAMILIES}


def find_family(name: str) -> Family:
    if name not in FAMILIES:
        raise QkvError(f"There is no family called {name}: {nearest_or_all(name, FAMILIES)}")
    return FAMILIES[name]


def build(family: str, sizes: Any) -> SequenceToSequence:
    """A new model with random weights, which remembers what it was built from."""
    model = find_family(family).build(sizes)
    model.family, model.sizes = family, sizes
    return model


def config_of(model: SequenceToSequence) -> dict[str, Any]:
    """What `config.json` says of a model."""
    return {"format": "qkv-1", "family": model.family, "sizes": asdict(model.sizes)}


def count_parameters(family: str, sizes: Any) -> int:
    """The number of parameters, counted on a model that occupies no memory."""
    with torch.device("meta"):
        model = find_family(family).build(sizes)
    return sum(parameter.numel() for parameter in model.parameters())
