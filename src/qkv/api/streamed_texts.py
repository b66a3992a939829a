"""Texts that stay on disk while a model trains on them, one corpus or several mixed by weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkv.api.choices import NewTokenizer
from qkv.api.language_data import NEW, Corpus, HowRows, LanguageData, TextsInMemory
from qkv.api.runs import counted, typical_batch
from qkv.api.texts import fingerprint_of_texts
from qkv.data.batches import Batches, BatchStream
from qkv.data.documents import Documents
from qkv.data.mixing import MixedBatches, shares
from qkv.data.mixing import Source as MixedSource
from qkv.data.packing import LanguageBatch
from qkv.data.plan import RowCount
from qkv.data.source import Source
from qkv.data.sources import SHARD_BYTES, sources_of
from qkv.data.streaming import WINDOW, StreamedRows, Windows, held_out_of
from qkv.data.token_folder import is_token_folder, open_tokens
from qkv.data.token_rows import TokenRows
from qkv.data.token_shards import TokenShards, cutting_of
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.files import checksum_of_json

SAMPLE_BYTES = 16 << 20  # of text, from which a new tokenizer learns
VALIDATION_TOKENS = 1 << 20  # at most


@dataclass(frozen=True)
class StreamedTexts:
    """Texts that are read from disk while a model trains on them: one corpus, or several mixed by weights.

    A window of so many shards is shuffled and packed at a time. Tokens are kept in the folder `cache`. With `workers`
    processes the windows to come are made beside the loop; by default one where a GPU would wait.
    """

    corpora: Mapping[str, Sequence[Source] | TokenShards]  # by name: texts, or tokens that were made of them before
    weights: Mapping[str, float] | None = None  # of the corpora, where there are several
    cache: Path | None = None
    window: int = WINDOW
    workers: int | None = None

    @property
    def tokenizer(self) -> TextTokenizer | None:
        """That of a corpus that is cut already."""
        return next((each.tokenizer for each in self.corpora.values() if isinstance(each, TokenShards)), None)

    @property
    def first(self) -> str:
        """The first text, to show something."""
        for corpus in self.corpora.values():
            for text in beginning(corpus, 1):
                return text
        raise QkvError(f"There is no document in {', '.join(self.corpora)}.")

    def shards(self, tokenizer: TextTokenizer) -> dict[str, TokenShards]:
        """The tokens of each corpus, there or to come."""
        found = {}
        for name, corpus in self.corpora.items():
            if not isinstance(corpus, TokenShards):
                corpus = TokenShards(corpus, tokenizer, self.cache)
            elif cutting_of(corpus.tokenizer) != cutting_of(tokenizer):
                raise QkvError(f"{name} holds tokens of another tokenizer than the model's: tokenise its texts again.")
            found[name] = corpus
        return found


def stream_texts(
    data: str | Path | Any | Mapping[str, float],
    *,
    column: str = "text",
    format: str | None = None,
    blank_lines_divide: bool = False,
    cache: Path | str | None = None,
    window: int = WINDOW,
    workers: int | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> StreamedTexts:
    """A corpus to train a language model on that need not fit in memory: a file, a folder, a data set of `datasets`.

    Several are given with their weights, `{"a.jsonl": 0.7, "wiki/": 0.3}`: of 10 rows that a model sees, 7 are of the
    first. Nothing is read yet; texts are tokenised when their turn comes and their tokens kept in `cache`. A folder
    that `qkv tokenize` made has its tokens, and its tokenizer is the model's.
    """
    places = {name: name for name in data} if isinstance(data, Mapping) else {str(data): data}
    if not places:
        raise QkvError("There is no corpus to train on: give at least one.")
    weights = dict(data) if isinstance(data, Mapping) else None
    shares(list((weights or {}).values()))
    how: dict[str, Any] = {"column": column, "format": format, "blank_lines_divide": blank_lines_divide}
    corpora: dict[str, Sequence[Source] | TokenShards] = {}
    for name, place in places.items():
        if isinstance(place, str | Path) and is_token_folder(place):
            corpora[name] = open_tokens(place)
        else:
            corpora[name] = sources_of(place, **how, shard_bytes=shard_bytes)
    said = cache is not None or format is not None or blank_lines_divide or column != "text"
    if said and all(isinstance(corpus, TokenShards) for corpus in corpora.values()):
        raise QkvError("Texts that are tokenised already have no column, format or cache: leave these out.")
    return StreamedTexts(corpora, weights, None if cache is None else Path(cache), window, workers)


def beginning(corpus: Sequence[Source] | TokenShards, most: float) -> list[str]:
    """The first texts of a corpus, of so many bytes in all, or the first one."""
    found: list[str] = []
    for text in _texts(corpus):
        found.append(text)
        most -= len(text.encode())
        if most <= 0:
            break
    return found


def _texts(corpus: Sequence[Source] | TokenShards) -> Iterator[str]:
    if isinstance(corpus, TokenShards):
        for number in range(len(corpus)):
            tokens = corpus.documents(number).tokens
            yield from (corpus.tokenizer.decode(tokens[row]) for row in range(len(tokens)))
    else:
        yield from (found for source in corpus for found in source.read() if isinstance(found, str))


def corpus_of(texts: Sequence[str] | StreamedTexts, valid: Sequence[str] | None, hold_out: float) -> Corpus:
    """The texts of a training, of which some are held out."""
    if isinstance(texts, StreamedTexts):
        return TextsOnDisk(texts, valid, hold_out)
    return TextsInMemory(texts, valid, hold_out)


class TextsOnDisk:
    """Streamed texts, of which some are held out wherever they lie; the first of those are validated on."""

    def __init__(self, texts: StreamedTexts, valid: Sequence[str] | None, hold_out: float) -> None:
        self.texts = texts
        self.valid = list(valid or ())
        self.hold_out = hold_out if valid is None else 0.0

    def tokenizer(self, chosen: NewTokenizer | TextTokenizer | None) -> NewTokenizer | TextTokenizer:
        """The one that is wanted, or that of a corpus which is cut already."""
        there = self.texts.tokenizer
        if there is not None and isinstance(chosen, NewTokenizer):
            raise QkvError("Texts that are tokenised already need no new tokenizer: leave it out.")
        return chosen or there or NEW

    def to_learn_from(self, say: Callable[[str], None]) -> Sequence[str]:
        """What a new tokenizer is trained on: the beginning of each corpus, as much of it as its weight says."""
        parts = {name: (self.texts.weights or {}).get(name, 1.0) for name in self.texts.corpora}
        found: list[str] = []
        for name, share in parts.items():
            found += beginning(self.texts.corpora[name], SAMPLE_BYTES * share / sum(parts.values()))
        length = sum(len(text.encode()) for text in found)
        say(f"A new tokenizer learns from the first {counted(len(found), 'document')}, {amount(length)}.")
        return found

    def data(self, tokenizer: TextTokenizer, how: HowRows, say: Callable[[str], None]) -> LanguageData:
        texts = self.texts
        shards = texts.shards(tokenizer)
        to_validate = self._to_validate(shards, tokenizer)
        workers = int(how.settings.torch_device().type == "cuda") if texts.workers is None else texts.workers
        rows = {
            name: StreamedRows(Windows(each, how.make, texts.window, how.seed, self.hold_out), workers, say=say)
            for name, each in shards.items()
        }
        held = 0 if to_validate is None else len(to_validate)
        return LanguageData(
            self._batches(rows, how, say),
            None if to_validate is None else how.make(to_validate, seed=0),
            full_batch(how),
            checksum_of_json(
                {
                    "corpora": [each.fingerprint for each in shards.values()],
                    "hold_out": self.hold_out,
                    "valid": fingerprint_of_texts(self.valid),
                }
            )[:16],
            f"{counted(sum(map(len, shards.values())), 'shard')}{self._size()} to train on, read from disk "
            f"{texts.window} at a time; {counted(held, 'document')} to validate on",
            {
                "window": texts.window,
                "hold_out": self.hold_out,
                **({"weights": dict(texts.weights)} if texts.weights else {}),
            },
        )

    def _size(self) -> str:
        """How much text there is, where only texts are given."""
        size = 0
        for corpus in self.texts.corpora.values():
            if isinstance(corpus, TokenShards):
                return ""
            size += sum(source.size for source in corpus)
        return f" of {amount(size)}"

    def _to_validate(self, shards: Mapping[str, TokenShards], tokenizer: TextTokenizer) -> Documents | None:
        if self.valid:
            return Documents.from_texts(self.valid, tokenizer)
        if not self.hold_out:
            return None
        most, window = VALIDATION_TOKENS // len(shards), self.texts.window
        found = Documents.joined([held_out_of(each, self.hold_out, most, window) for each in shards.values()])
        if not found.tokens.lengths.any():
            raise QkvError(
                f"None of the documents of the first shards is held out by a share of {self.hold_out:g}: hold out "
                "more, give texts to validate on, or hold out none (0)."
            )
        return found

    def _batches(
        self, rows: Mapping[str, StreamedRows], how: HowRows, say: Callable[[str], None]
    ) -> BatchStream[LanguageBatch, Any]:
        if self.texts.weights is None:
            (only,) = rows.values()
            return Batches(only, how.batching, seed=how.seed)
        if not isinstance(how.batching, RowCount):
            raise QkvError("Corpora are mixed row by row: give batching=RowCount(…), the rows of a batch.")
        sources = [MixedSource(name, each, self.texts.weights[name]) for name, each in rows.items()]
        return MixedBatches(sources, how.batching.rows, seed=how.seed, say=say)


def amount(size: int) -> str:
    """Bytes, as a person says them."""
    for unit, word in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {word}"
    return counted(size, "byte")


def full_batch(how: HowRows) -> LanguageBatch:
    """A batch of full rows: what nearly every batch is, known without reading any."""
    rows = 8
    tokens = TokenRows(np.zeros(rows * how.length, np.int32), np.arange(rows + 1) * how.length, 0)
    made = how.make(Documents(tokens, np.full(rows, how.length)), seed=0)
    return typical_batch(made, how.batching)
