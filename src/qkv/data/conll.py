"""Tagged words one a line, sentences with blank lines between, as the CoNLL tasks have them. [tjongkimsang2003]"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from qkv.data.columns import SHOWN
from qkv.data.records import BYTE_ORDER_MARK, NO_UTF8, OPENERS, lines_of, open_bytes
from qkv.data.table import Problem

SUFFIXES = (".conll", ".iob", ".iob2", ".bio")
NEW_DOCUMENT = "-DOCSTART-"
Sentence = tuple[list[str], list[str]]  # words, tags


def is_conll(path: str | Path) -> bool:
    path = Path(path)
    name = path.with_suffix("") if path.suffix.lower() in OPENERS else path
    return name.suffix.lower() in SUFFIXES


def read_conll(file: str | Path, classes: Sequence[str] | None = None) -> tuple[list[Sentence], list[Problem]]:
    """The first column of each line is a word and the last its tag, with `classes` one of these.

    A sentence with a bad line is left out whole.
    """
    sentences: list[Sentence] = []
    problems: list[Problem] = []
    words: list[str] = []
    tags: list[str] = []
    reason, bad_line = "", 0
    for line, content in _lines(str(file)):
        if content is None:
            reason, bad_line = reason or NO_UTF8, bad_line or line
            continue
        columns = content.split()
        if columns and not columns[0].startswith(NEW_DOCUMENT):
            if len(columns) < 2:
                reason, bad_line = reason or "the line has a word without a tag", bad_line or line
            elif classes is not None and columns[-1] not in classes:
                other = f"the tag {columns[-1][:SHOWN]!r} is none of {', '.join(classes)}"
                reason, bad_line = reason or other, bad_line or line
            words.append(columns[0])
            tags.append(columns[-1])
            continue
        if reason:
            problems.append(Problem(str(file), bad_line, reason))
        elif words:
            sentences.append((words, tags))
        words, tags, reason, bad_line = [], [], "", 0
    return sentences, problems


def _lines(file: str) -> Iterator[tuple[int, str | None]]:
    """Numbered lines, None for one that is no UTF-8, and a blank one at the end."""
    line = 0
    with open_bytes(file) as stream:
        for line, content in enumerate(lines_of(stream, file), start=1):
            try:
                yield line, (content.removeprefix(BYTE_ORDER_MARK) if line == 1 else content).decode()
            except UnicodeDecodeError:
                yield line, None
    yield line + 1, ""
