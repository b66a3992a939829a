"""Words with a tag each (names of people, parts of speech): reading them, and lining tags up with pieces of words.

Shapes: b rows of a batch, s slots, n rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from qkv.data.columns import words
from qkv.data.conll import is_conll, read_conll
from qkv.data.encoding import Encoding
from qkv.data.labelled import class_names
from qkv.data.plan import PlannedBatch
from qkv.data.table import Problem, Row, read_table
from qkv.data.text_rows import TaskRows, TextBatch, TextRows
from qkv.data.token_rows import TokenRows
from qkv.errors import QkvError

UNTAGGED = -1  # a token that is no beginning of a word, or padding


@dataclass(frozen=True)
class TaggedWords:
    """Sentences as words, and a tag for each word."""

    words: list[list[str]]
    tags: list[list[str]]
    names: tuple[str, ...]  # of all tags, in the order of a model's logits
    problems: list[Problem] = field(default_factory=list)

    def numbers(self) -> list[list[int]]:
        """The tags as places in `names`."""
        place = {name: number for number, name in enumerate(self.names)}
        return [[place[tag] for tag in tags] for tags in self.tags]


def read_tagged(
    path: str | Path,
    *,
    words_column: str = "words",
    tags_column: str = "tags",
    classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    format: str | None = None,
) -> TaggedWords:
    """Two columns of a table, each a list (JSONL, parquet) or with spaces between, of the same length in a row; or a
    file of the CoNLL tasks (`.conll`, `.iob2`, …).

    The tags are those that occur, in the order of the alphabet; with `classes` another one makes a bad row.
    """
    known = None if classes is None else set(classes)
    if format is None and is_conll(path):
        return _from_conll(path, classes)

    def check(row: Row) -> str:
        said, tags = row[words_column], row[tags_column]
        if len(said) != len(tags):
            return f"{len(said)} words and {len(tags)} tags, where there should be as many"
        other = next((tag for tag in tags if known is not None and tag not in known), None)
        return "" if other is None else f"the tag {other[:40]!r} is none of {', '.join(classes or ())}"

    kinds = {words_column: words, tags_column: words}
    table = read_table(path, [words_column, tags_column], kinds=kinds, check=check, names=names, format=format)
    tags: list[list[str]] = table.column(tags_column)
    found = tuple(classes) if classes is not None else class_names([tag for each in tags for tag in each])
    return TaggedWords(table.column(words_column), tags, found, table.problems)


def _from_conll(path: str | Path, classes: Sequence[str] | None) -> TaggedWords:
    sentences, problems = read_conll(path, classes)
    if not sentences:
        first = f"; the first problem is {problems[0]}" if problems else ""
        raise QkvError(f"There is no sentence in {path} that can be used{first}.")
    tags = [tags for _, tags in sentences]
    found = tuple(classes) if classes is not None else class_names([tag for each in tags for tag in each])
    return TaggedWords([said for said, _ in sentences], tags, found, problems)


@dataclass(frozen=True)
class TagBatch(TextBatch):
    """Texts and the tag of each token that has one."""

    tags: Tensor  # [b s] long: UNTAGGED where there is none to predict
    tagged: int  # tokens that have one


@dataclass(frozen=True)
class TagRows(TaskRows):
    """Encoded words and the tags of their tokens: the first piece of a word has the word's. [devlin2019 §5.3]"""

    tags: TokenRows  # beside the tokens

    @classmethod
    def from_encodings(cls, encodings: Sequence[Encoding], tags: Sequence[Sequence[int]], *, pad: int) -> "TagRows":
        """`tags[i]` are those of the words of `encoding.row == i`; words that were cut off lose theirs."""
        lined_up = []
        for encoding in encodings:
            of_words = tags[encoding.row]
            lined_up.append([UNTAGGED if word is None else of_words[word] for word in first_pieces(encoding)])
        return cls(TextRows.from_encodings(encodings, pad=pad), TokenRows.from_lists(lined_up, UNTAGGED))

    def batch(self, planned: PlannedBatch) -> TagBatch:
        tags, _ = self.tags.rectangle(planned.rows, planned.source_width, planned.filler)
        tags[len(planned.rows) :] = UNTAGGED
        return TagBatch(
            **self.texts.tensors(planned), tags=torch.from_numpy(tags), tagged=int((tags != UNTAGGED).sum())
        )


def first_pieces(encoding: Encoding) -> list[int | None]:
    """The number of the word that begins with each token, None for other tokens; a window may begin inside a word."""
    seen: set[int] = set()
    begins: list[int | None] = []
    for word in encoding.words:
        begins.append(None if word is None or word in seen else word)
        if word is not None:
            seen.add(word)
    return begins


def tags_of_words(encoding: Encoding, predicted: Sequence[int], count: int, otherwise: int) -> list[int]:
    """The tag of each of `count` words from those predicted for its tokens; `otherwise` for words that were cut off."""
    if len(predicted) < len(encoding):
        raise QkvError(f"There are {len(encoding)} tokens, but only {len(predicted)} predicted tags.")
    tags = [otherwise] * count
    for word, tag in zip(first_pieces(encoding), predicted, strict=False):
        if word is not None:
            tags[word] = tag
    return tags
