"""What a family of models is: sizes as a dataclass, a builder, and the sizes that were published."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from qkv.errors import QkvError, nearest_or_all

# The heads that other libraries publish checkpoints with; an embedding is made from any of them.
DECODER_HEADS = ("language", "states", "classification", "tokens", "spans", "embedding")
BERT_HEADS = ("pretraining", "masked", "pooled", "states", "classification", "tokens", "spans", "embedding")
ENCODER_HEADS = ("masked", "states", "classification", "tokens", "spans", "embedding")

MOST = 10**8  # no size is larger; the product of two larger ones could not even be counted in bytes


@dataclass(frozen=True)
class Family:
    """A way to build models: its sizes as a dataclass, its builder, and the sizes published with their paper.

    A family of models of one row has `heads` to choose from, the usual one first, and its builder takes the choice; the
    other families turn one sequence into another, or compare two, and have none.
    """

    name: str
    summary: str
    sizes_type: type
    build: Callable[..., Any]
    published: Mapping[str, Any]
    heads: tuple[str, ...] = ()
    reads: str = "text"  # or "images" or "sound"

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
    if kind in ("bool", "str") and type(value).__name__ != kind:
        must = "true or false" if kind == "bool" else "a name"
        raise QkvError(f"The size {name} of family {family} must be {must}, but is {value!r}.")
    if kind.startswith("int") and (type(value) is not int or not 0 < value <= MOST):
        bound = "" if type(value) is not int or value < 1 else f" and at most {MOST:,}"
        raise QkvError(f"The size {name} of family {family} must be a whole number above 0{bound}, but is {value!r}.")
    if kind.startswith("tuple[int") and not (
        isinstance(value, list | tuple) and all(type(each) is int and 0 < each <= MOST for each in value)
    ):
        must = f"must be whole numbers from 1 to {MOST:,}"
        raise QkvError(f"The size {name} of family {family} {must}, but is {value!r}.")
    most = 1 if "dropout" in name else sys.float_info.max
    if kind.startswith("float") and (type(value) not in (int, float) or not 0 <= value < most):
        least = "at least 0 and below 1" if "dropout" in name else "0 or more"
        raise QkvError(f"The size {name} of family {family} must be a number of {least}, but is {value!r}.")
