"""How choices are spelled on a command line: `bpe:8000` for a tokenizer, `base,dropout=0.3` for a size."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkv.api.choices import DESK, NewTokenizer, named_sizes
from qkv.data.token_kinds import KINDS
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError, nearest_or_all
from qkv.models.catalogue import find_family

Tokenizer = NewTokenizer | TextTokenizer


def tokenizer_of(spelled: str) -> Tokenizer:
    """`characters`, `bpe:8000`, or the path of a `tokenizer.json`."""
    if spelled.endswith(".json"):
        return TextTokenizer.load(Path(spelled))
    kind, colon, most = spelled.partition(":")
    if kind not in KINDS:
        raise QkvError(f"There is no tokenizer kind called {kind!r}: {nearest_or_all(kind, KINDS)}")
    if colon and not most.isdecimal():
        raise QkvError(f"The tokenizer {spelled!r} should be spelled kind:vocabulary, for example {kind}:8000.")
    return NewTokenizer(kind, int(most) if colon else None)


def tokenizers_of(both: str, source: str | None, target: str | None) -> tuple[Tokenizer, Tokenizer | None]:
    """Source and target tokenizer; the latter is None where one serves both sides."""
    if source is None and target is None:
        return tokenizer_of(both), None
    return tokenizer_of(source or both), tokenizer_of(target or both)


def sizes_of(
    family: str, spelled: str, dropout: float | None = None, base: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """`base`, `width=128,layers=2` (changes to the desk size) or `base,dropout=0.3`, as values by name.

    One name may stand for what a family tells apart for its encoder and its decoder, such as `layers`. With a `base`,
    changes are to that one.
    """
    chosen = find_family(family)
    first, *changes = spelled.split(",")
    name = first if "=" not in first else DESK
    values = dict(base) if base is not None and "=" in first else named_sizes(chosen, name)
    for change in changes if "=" not in first else [first, *changes]:
        key, equals, value = change.partition("=")
        if not equals:
            raise QkvError(f"The size {spelled!r} should be spelled like base, width=128,layers=2 or base,dropout=0.3.")
        both = (f"encoder_{key}", f"decoder_{key}")
        for each in both if values.keys() >= set(both) else (key,):
            values[each] = number(each, value)
    return values if dropout is None else {**values, "dropout": dropout}


def names_of(spelled: str) -> list[str] | None:
    """`word,phonemes` or `word, phonemes`, as a list; None where nothing is said."""
    if not spelled:
        return None
    names = [name.strip() for name in spelled.split(",")]
    if not all(names):
        raise QkvError(f"The column names {spelled!r} should be spelled with commas between them: word,phonemes.")
    return names


def number(name: str, value: str) -> int | float:
    for read in (int, float):
        try:
            return read(value)
        except ValueError:
            continue
    raise QkvError(f"The size {name} must be a number, but is {value!r}.")
