"""What a training on texts chooses: the texts, the tokenizer, a new model or one that was loaded."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qkv.api.choices import NewTokenizer, Sizes, named_sizes
from qkv.api.runs import divided
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.reader import TOKENIZER_FILE
from qkv.models.attention_choice import AttentionChoice
from qkv.models.catalogue import attention_of, build, find_family
from qkv.models.family import Family
from qkv.models.head_choice import HeadChoice
from qkv.models.text_model import TextModel


def fingerprint_of_texts(texts: Iterable[str]) -> str:
    """A short name for these very texts in this very order."""
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode()
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()[:16]


def held_out(texts: Sequence[str], valid: Sequence[str] | None, share: float) -> tuple[list[str], list[str]]:
    """(to train on, held out): the texts given for it, or about a share of all."""
    if not texts:
        raise QkvError("There is no text to train on: give at least one.")
    if valid is not None or not share:
        return list(texts), list(valid or [])
    return divided(texts, share, key=lambda text: text)


def chosen_tokenizer(
    texts: Sequence[str] | Callable[[], Sequence[str]],
    tokenizer: NewTokenizer | TextTokenizer,
    folder: Path,
    resume: bool,
) -> TextTokenizer:
    """The one given, one trained on the texts, or that of the run which goes on."""
    if resume:
        return TextTokenizer.load(folder / TOKENIZER_FILE)
    if not isinstance(tokenizer, NewTokenizer):
        return tokenizer
    return tokenizer.train(texts() if callable(texts) else texts)


def family_of_texts(name: str) -> Family:
    """A family of models that read one row of text."""
    chosen = find_family(name)
    if chosen.reads != "text":
        raise QkvError(f"Family {name} reads {chosen.reads}, not text.")
    if not chosen.heads:
        raise QkvError(f"Family {name} turns one sequence into another: train it on pairs of texts.")
    return chosen


def new_text_model(
    family: str,
    sizes: Sizes,
    head: HeadChoice,
    tokenizer: TextTokenizer,
    length: int,
    attention: AttentionChoice | None = None,
) -> TextModel:
    """A new model: a named size or changes to the desk size; vocabulary and longest text follow from the data."""
    chosen = family_of_texts(family)
    values: dict[str, Any] = named_sizes(chosen, sizes) if isinstance(sizes, str) else named_sizes(chosen, "desk")
    changes: Mapping[str, Any] = {} if isinstance(sizes, str) else sizes
    if "vocabulary" in changes:
        raise QkvError("The size vocabulary follows from the tokenizer: give the tokenizer its vocabulary instead.")
    values = {**values, **changes, "vocabulary": tokenizer.size}
    if "positions" in values and "positions" not in changes:
        values["positions"] = max(length, 1) if not isinstance(sizes, str) else max(length, values["positions"])
    model: TextModel = build(family, chosen.sizes(values), head, attention)
    return model


def about_model(model: TextModel, tokenizer: TextTokenizer) -> dict[str, Any]:
    """What `run.json` says of a model; a resumed run must agree with it."""
    attention = attention_of(model)
    return {
        "family": model.family,
        "sizes": asdict(model.sizes),
        "head": model.head_choice.config(),
        **({} if attention is None else {"attention": str(attention)}),
        "tokenizer": tokenizer.fingerprint(),
    }
