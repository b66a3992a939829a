"""Texts that stay on disk while a model trains on them, one corpus or several mixed by weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkv.api.language_data import Corpus, HowRows, LanguageData, TextsInMemory
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
from qkv.data.token_rows import TokenRows
from qkv.data.token_shards import TokenShards
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

    sources: Mapping[str, Sequence[Source]]  # by the name of their corpus
    weights: Mapping[str, float] | None = None  # of the corpora, where there are several
    cache: Path | None = None
    window: int = WINDOW
    workers: int | None = None

    def beginning(self, name: str, most: float) -> list[str]:
        """The first texts of a corpus, of so many bytes in all, or the first one."""
        found: list[str] = []
        room = most
        for source in self.sources[name]:
            for text in source.read():
                if isinstance(text, str):
                    found.append(text)
                    room -= len(text.encode())
                    if room <= 0:
                        return found
        return found

    @property
    def first(self) -> str:
        """The first text of all, to show something."""
        for name in self.sources:
            for text in self.beginning(name, 1):
                return text
        raise QkvError(f"There is no document in {', '.join(self.sources)}.")


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
    first. Nothing is read yet; texts are tokenised when their turn comes and their tokens kept in `cache`.
    """
    parts: Mapping[str, float] = data if isinstance(data, Mapping) else {str(data): 1.0}
    if not parts:
        raise QkvError("There is no corpus to train on: give at least one.")
    how: dict[str, Any] = {"column": column, "format": format, "blank_lines_divide": blank_lines_divide}
    sources = {
        name: sources_of(name if isinstance(data, Mapping) else data, **how, shard_bytes=shard_bytes) for name in parts
    }
    weights = dict(parts) if isinstance(data, Mapping) else None
    shares(list(parts.values()))
    return StreamedTexts(sources, weights, None if cache is None else Path(cache), window, workers)


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

    def to_learn_from(self, say: Callable[[str], None]) -> Sequence[str]:
        """What a new tokenizer is trained on: the beginning of each corpus, as much of it as its weight says."""
        parts = {name: (self.texts.weights or {}).get(name, 1.0) for name in self.texts.sources}
        found: list[str] = []
        for name, share in parts.items():
            found += self.texts.beginning(name, SAMPLE_BYTES * share / sum(parts.values()))
        length = sum(len(text.encode()) for text in found)
        say(f"A new tokenizer learns from the first {counted(len(found), 'document')}, {amount(length)}.")
        return found

    def data(self, tokenizer: TextTokenizer, how: HowRows, say: Callable[[str], None]) -> LanguageData:
        texts = self.texts
        shards = {name: TokenShards(sources, tokenizer, texts.cache) for name, sources in texts.sources.items()}
        to_validate = self._to_validate(shards, tokenizer)
        workers = int(how.settings.torch_device().type == "cuda") if texts.workers is None else texts.workers
        rows = {
            name: StreamedRows(Windows(each, how.make, texts.window, how.seed, self.hold_out), workers, say=say)
            for name, each in shards.items()
        }
        size = sum(source.size for sources in texts.sources.values() for source in sources)
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
            f"{counted(sum(map(len, shards.values())), 'shard')} of {amount(size)} to train on, read from disk "
            f"{texts.window} at a time; {counted(held, 'document')} to validate on",
            {
                "window": texts.window,
                "hold_out": self.hold_out,
                **({"weights": dict(texts.weights)} if texts.weights else {}),
            },
        )

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
