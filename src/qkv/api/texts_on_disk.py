"""A training on texts that stay on disk: its tokenizer, its batches, what is held out."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkv.api.choices import NewTokenizer
from qkv.api.language_data import NEW, Corpus, HowRows, LanguageData, TextsInMemory
from qkv.api.runs import counted, typical_batch
from qkv.api.streamed_texts import StreamedTexts, beginning
from qkv.api.texts import fingerprint_of_texts
from qkv.data.batches import Batches, BatchStream
from qkv.data.documents import Documents
from qkv.data.mixing import Ingredient, MixedBatches
from qkv.data.packing import LanguageBatch
from qkv.data.plan import RowCount
from qkv.data.streaming import StreamedRows, Windows, held_out_of
from qkv.data.token_rows import TokenRows
from qkv.data.token_shards import TokenShards, cutting_of
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.files import checksum_of_json, read_json

SAMPLE_BYTES = 16 << 20  # of text, from which a new tokenizer learns
VALIDATION_TOKENS = 1 << 20  # at most
SHARDS_FILE = "shards.json"  # in a run folder: which shards there were, and what identified each
CHANGES_SHOWN = 5


def corpus_of(
    texts: Sequence[str] | StreamedTexts | TextsInMemory, valid: Sequence[str] | None, hold_out: float
) -> Corpus:
    """The texts of a training, of which some are held out; those that several trainings share are divided already."""
    if isinstance(texts, TextsInMemory):
        return texts
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
        to_come = sum(not each.file(number).exists() for each in shards.values() for number in range(len(each)))
        if to_come:
            say(f"{counted(to_come, 'shard')} of texts will be cut into tokens, each when its turn comes.")
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
                    "shards": [each.names for each in shards.values()],
                    "tokenizer": cutting_of(tokenizer),
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
            [shard for each in shards.values() for shard in listed(each)],
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
        sources = [Ingredient(name, each, self.texts.weights[name]) for name, each in rows.items()]
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


def listed(shards: TokenShards) -> list[dict[str, str]]:
    return [{"name": name, "key": key} for name, key in zip(shards.names, shards.keys, strict=True)]


def tell_changes(shards: Sequence[Mapping[str, str]], folder: Path, say: Callable[[str], None]) -> None:
    """Tell which shards are other ones than when the run in a folder began, such as one that could not be read then.

    That there are as many of the same names the fingerprint of a run tells.
    """
    begun = read_json(folder / SHARDS_FILE)
    before = [each.get("key") for each in begun if isinstance(each, dict)] if isinstance(begun, list) else []
    changed = [shard["name"] for shard, key in zip(shards, before, strict=False) if shard["key"] != key]
    if changed:
        more = f" and {len(changed) - CHANGES_SHOWN:,} more" if len(changed) > CHANGES_SHOWN else ""
        say(f"Changed since the run began: {', '.join(changed[:CHANGES_SHOWN])}{more}.")
