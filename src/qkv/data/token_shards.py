"""A corpus as tokenised shards: one file for each source, made once, read by memory map, larger than memory.

A shard's file is named by a fingerprint of its source, of the tokenizer and of the way it was read. So a corpus that
grows keeps the shards it has, and several runs, or several processes, may share one folder.
"""

import fcntl
import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from qkv.data.documents import ENCODED_AT_ONCE, Documents
from qkv.data.source import Found, Source, TextHash, text_hash
from qkv.data.table import Problem
from qkv.data.token_files import DamagedTokens, TokenFile, gathering, open_token_file, write_token_file
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError, QkvWarning
from qkv.files import checksum_of_json

VERSION = 1  # of what a shard's file holds; another one has other names
PROBLEMS_KEPT, LONGEST_REASON = 20, 300  # of a shard, with so many letters of their reasons; the others are counted


def tokens_cache() -> Path:
    """Where tokenised shards are kept if nobody names a folder."""
    base = os.environ.get("QKV_CACHE") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "qkv" / "tokens"


@dataclass(frozen=True)
class Beat:
    """A sign of life while a shard is made: what came along since the last one."""

    documents: int
    tokens: int


class TokenShards:
    """The documents of a corpus as ids, shard by shard; what is not in the folder yet is made when it is asked for.

    `fingerprint` names this very list of sources, read in this way and cut by this tokenizer. It is known at once, and
    so covers what `Source.identity` does: names, sizes and samples of the files. Whether every text is still what it
    was is asked shard by shard, when it is opened: where the file it came from was written to, its texts are read again
    and compared.
    """

    def __init__(self, sources: Sequence[Source], tokenizer: TextTokenizer, folder: Path | str | None = None) -> None:
        if not sources:
            raise QkvError("There is nothing to tokenise: a corpus needs at least one source.")
        self.sources = list(sources)
        self.tokenizer = tokenizer
        cutting = {
            "version": VERSION,
            "tokenizer": tokenizer.fingerprint(),
            "vocabulary": tokenizer.size,
            "roles": tokenizer.roles,
        }
        self.keys = [checksum_of_json({**cutting, "source": source.identity()})[:32] for source in self.sources]
        self.fingerprint = checksum_of_json(self.keys)[:16]
        self.folder = tokens_cache() / checksum_of_json(cutting)[:16] if folder is None else Path(folder)
        self._seen: dict[int, str] = {}  # which state of its file was found good, by shard

    def __len__(self) -> int:
        return len(self.keys)

    def name(self, number: int) -> str:
        """What a person calls the shard: file and stretch."""
        return self.sources[number].name

    def file(self, number: int) -> Path:
        """Where the shard is, or will be."""
        return self.folder / f"{self.keys[number]}.safetensors"

    def documents(self, number: int) -> Documents:
        """The documents of a shard, their ids left on disk until they are used; made first where they are not there.

        There may be none, where nothing in a source could be read.
        """
        return self._open(number).documents

    def problems(self, number: int) -> tuple[list[Problem], int]:
        """(the first problems that a shard's source had, how many it had)."""
        notes = self._open(number).notes
        return [Problem(*problem) for problem in json.loads(notes["problems"])], int(notes["problem_count"])

    def prepare(
        self, numbers: Sequence[int] | None = None, workers: int = 1, beat: Callable[[int, Beat], None] | None = None
    ) -> None:
        """Make the shards that are not there yet; what is there and good stays."""
        for number in range(len(self)) if numbers is None else numbers:
            self._tell(self.ensure(number, None if beat is None else partial(beat, number)))

    def ensure(self, number: int, beat: Callable[[Beat], None] | None = None) -> list[str]:
        """Make a shard unless it is there and good; returns what a person should be told."""
        told: list[str] = []
        try:
            if self._good(number) is not None:
                return told
        except DamagedTokens as error:
            told.append(f"{error} The shard {self.name(number)} is made anew.")
        with self._made_by_one(number):
            try:
                if self._good(number) is not None:  # another process was quicker
                    return told
            except DamagedTokens:
                pass
            self._make(number, beat)
        return told

    def _open(self, number: int) -> TokenFile:
        self._tell(self.ensure(number))
        return open_token_file(self.file(number), vocabulary=self.tokenizer.size, verify=False)

    def _good(self, number: int) -> TokenFile | None:
        """The shard's file, if there is one; raises `DamagedTokens` where it cannot be used."""
        file = self.file(number)
        try:
            state = file.stat()
        except FileNotFoundError:
            return None
        stamp = self.sources[number].stamp()
        mark = f"{state.st_ino}:{state.st_size}:{state.st_mtime_ns}:{stamp}"
        if self._seen.get(number) == mark:
            return open_token_file(file, vocabulary=self.tokenizer.size, verify=False)
        found = open_token_file(file, vocabulary=self.tokenizer.size)
        if found.notes.get("key") != self.keys[number]:
            raise DamagedTokens(f"{file} holds the tokens of something else.")
        if (stamp is None or found.notes["stamp"] != stamp) and found.notes["texts"] != text_hash(self.sources[number]):
            raise DamagedTokens(f"{file} was made from other texts than there are now.")
        self._seen[number] = mark
        return found

    def _make(self, number: int, beat: Callable[[Beat], None] | None) -> None:
        source = self.sources[number]
        stamp = source.stamp()  # before reading: what is written meanwhile shows later
        found, problems = TextHash(), _Problems()
        texts = problems.taken_out(source.read())
        try:
            with gathering(self.folder, self.tokenizer.size) as gathered:
                while some := list(islice(texts, ENCODED_AT_ONCE)):
                    lengths = [found.add(text) for text in some]
                    tokens = gathered.add(self.tokenizer.encode(some), lengths)
                    if beat is not None:
                        beat(Beat(len(some), tokens))
                notes = {
                    "key": self.keys[number],
                    "source": source.name,
                    "stamp": stamp or "",
                    "texts": found.result(),
                    "problems": json.dumps(problems.first),
                    "problem_count": str(problems.count),
                }
                write_token_file(self.file(number), gathered, notes)
        except QkvError as error:
            raise QkvError(f"The shard {source.name} cannot be tokenised. {error}") from error
        except OSError as error:
            reason = error.strerror or error
            raise QkvError(f"The tokens of {source.name} cannot be written to {self.folder}: {reason}.") from error

    @contextmanager
    def _made_by_one(self, number: int) -> Iterator[None]:
        """Within the block no other process on this machine makes the shard; where a file system knows no locks, two
        may, which costs time and nothing else: each writes a file of its own, and equal ones take each other's place.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / f".{self.keys[number]}.lock").open("wb")
        except OSError as error:
            raise QkvError(f"Tokens cannot be written to {self.folder}: {error.strerror or error}.") from error
        with lock:
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)  # let go by the system, also where this process is killed
            yield

    def _tell(self, told: Sequence[str]) -> None:
        for sentence in told:
            warnings.warn(sentence, QkvWarning, stacklevel=3)


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
