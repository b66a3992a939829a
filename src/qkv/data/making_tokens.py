"""Making the file of one tokenised shard, in whatever process it is made."""

import json
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from qkv.data.documents import ENCODED_AT_ONCE
from qkv.data.source import Found, Source, TextHash
from qkv.data.table import Problem
from qkv.data.token_files import DamagedTokens, TokenFile, gathering, write_token_file
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.files import hold

PROBLEMS_KEPT, LONGEST_REASON = 20, 300  # of a shard, with so many letters of their reasons; the others are counted
LETTERS_AT_ONCE = 1 << 24  # that are cut into tokens together; their ids are lists for a while
LEFT_BEHIND = 3600.0  # seconds after which nobody is writing any more


@dataclass(frozen=True)
class Made:
    """What is in a shard, and what a person should be told about how it came there."""

    documents: int
    tokens: int
    problems: list[Problem]  # the first of them
    problem_count: int
    told: Sequence[str] = ()


def made_of(file: TokenFile, told: Sequence[str] = ()) -> Made:
    tokens = file.documents.tokens
    try:
        problems = [Problem(str(where), int(line), str(why)) for where, line, why in json.loads(file.notes["problems"])]
        return Made(len(tokens), len(tokens.ids), problems, int(file.notes["problem_count"]), told)
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise DamagedTokens(f"{file.path} is no file of tokens: its notes are not as they should be.") from error


def make_tokens(source: Source, tokenizer: TextTokenizer, key: str, file: Path) -> None:
    """Read a source, cut its texts and put the file in its place; what is held in memory does not grow with it, but for
    two numbers for each document."""
    found, problems = TextHash(), _Problems()
    try:
        stamp = source.stamp()  # before reading: what is written meanwhile shows later
        texts = problems.taken_out(source.read())
        with gathering(file.parent, tokenizer.size) as gathered:
            for some in some_at_a_time(texts):
                lengths = [found.add(text) for text in some]
                gathered.add(tokenizer.encode(some), lengths)
            notes = {
                "key": key,
                "source": source.name,
                "stamp": stamp or "",
                "texts": found.result(),
                "problems": json.dumps(problems.first),
                "problem_count": str(problems.count),
            }
            write_token_file(file, gathered, notes)
    except QkvError as error:
        raise QkvError(f"The shard {source.name} cannot be tokenised. {error}") from error
    except OSError as error:
        reason = error.strerror or error
        raise QkvError(f"The tokens of {source.name} cannot be written to {file.parent}: {reason}.") from error


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """Within the block no other process on this machine makes the file.

    Where a file system knows no locks two may, which costs time and nothing else: each writes under a name of its own,
    and equal files take each other's place.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.with_name(f".{file.stem}.lock").open("wb")
    except OSError as error:
        raise QkvError(f"Tokens cannot be written to {file.parent}: {error.strerror or error}.") from error
    with lock:
        if hold(lock):
            drop_torn(file)
        yield


def drop_torn(file: Path) -> None:
    """Delete what processes that were killed had begun to write: on this machine all of it, for none is at it now, and
    what is old, for on another machine one may be."""
    for torn in file.parent.glob(f".{file.name}.*.partial"):
        ours = torn.name.startswith(f".{file.name}.{platform.node()}-")
        if ours or time.time() - torn.stat().st_mtime > LEFT_BEHIND:
            torn.unlink(missing_ok=True)


def some_at_a_time(texts: Iterator[str]) -> Iterator[list[str]]:
    """So many texts as are cut at once: not too many of them, and not too much."""
    some: list[str] = []
    letters = 0
    for text in texts:
        some.append(text)
        letters += len(text)
        if len(some) == ENCODED_AT_ONCE or letters >= LETTERS_AT_ONCE:
            yield some
            some, letters = [], 0
    if some:
        yield some


class _Problems:
    """The problems among what a source gives: the first of them, and how many there were."""

    def __init__(self) -> None:
        self.first: list[tuple[str, int, str]] = []
        self.count = 0

    def taken_out(self, texts: Iterator[Found]) -> Iterator[str]:
        for text in texts:
            if isinstance(text, str):
                yield text
                continue
            self.count += 1
            if len(self.first) < PROBLEMS_KEPT:
                self.first.append((text.file, text.line, text.reason[:LONGEST_REASON]))
