"""The texts that `make corpora` fetches, as documents to pre-train on: reviews, articles, addresses, novels."""

from __future__ import annotations

import hashlib
from pathlib import Path

from qkv.data.documents import read_documents
from qkv.data.labelled import read_labelled
from qkv.errors import QkvError

HELD_OUT = 0.01  # share of the documents for validation, and the same again for the test
CHAPTERS = 20_000  # characters of a piece of a novel: one whole novel would be held out, or none


def documents(corpora: Path) -> dict[str, list[str]]:
    """train, valid and test documents. Which is which depends on the text alone; no review of the IMDB test is used."""
    if not (corpora / "imdb").is_dir():
        raise QkvError(f"There is no folder {corpora / 'imdb'}: fetch the texts with `make corpora`.")
    found = [text for part in ("train", "valid") for text in read_documents(corpora / "imdb" / f"{part}.jsonl").texts]
    found += read_documents(corpora / "reuters" / "articles.jsonl").texts
    found += read_documents(corpora / "sotu" / "sotu.jsonl").texts
    for book in [corpora / "moby-dick" / "moby-dick.txt", *sorted((corpora / "austen").glob("*.txt"))]:
        (text,) = read_documents(book).texts
        found += [text[first : first + CHAPTERS] for first in range(0, len(text), CHAPTERS)]
    tested = set(read_documents(corpora / "imdb" / "test.jsonl").texts)
    parts: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for text in dict.fromkeys(found):  # each text once
        if text not in tested:
            place = hashlib.sha256(text.encode()).digest()[0] / 256
            parts["test" if place < HELD_OUT else "valid" if place < 2 * HELD_OUT else "train"].append(text)
    return parts


def reviews(corpora: Path) -> dict[str, list[tuple[str, str]]]:
    """(text, label) of train, valid and test; what stands in the test as well is left out of the others."""
    parts = {}
    for part in ("train", "valid", "test"):
        found = read_labelled(corpora / "imdb" / f"{part}.jsonl")
        parts[part] = list(zip(found.texts, found.labels, strict=True))
    tested = {text for text, _ in parts["test"]}
    for part in ("train", "valid"):
        parts[part] = [row for row in parts[part] if row[0] not in tested]
    return parts
