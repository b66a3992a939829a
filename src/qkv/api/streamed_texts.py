"""Texts that stay on disk while a model trains on them, one corpus or several mixed by weights."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.data.mixing import shares
from qkv.data.source import Source
from qkv.data.sources import SHARD_BYTES, sources_of
from qkv.data.streaming import WINDOW
from qkv.data.token_folder import is_token_folder, open_tokens
from qkv.data.token_shards import TokenShards, cutting_of
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError


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
