"""A corpus as tokenised shards: one file for each source, made once, read by memory map, larger than memory.

A shard's file is named by a fingerprint of its source, of the tokenizer and of the way it was read. So a corpus that
grows keeps the shards it has, and several runs, or several processes, may share one folder.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from qkv.data.documents import Documents
from qkv.data.in_processes import LONG, InProcesses
from qkv.data.making_tokens import Made, alone, made_of, make_tokens
from qkv.data.source import Source, text_hash
from qkv.data.table import Problem
from qkv.data.token_files import DamagedTokens, TokenFile, open_token_file
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError, QkvWarning
from qkv.files import checksum_of_json

VERSION = 1  # of what a shard's file holds; another one has other names


def tokens_cache() -> Path:
    """Where tokenised shards are kept if nobody names a folder."""
    base = os.environ.get("QKV_CACHE") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "qkv" / "tokens"


def cutting_of(tokenizer: TextTokenizer) -> str:
    """A short name for the way a tokenizer cuts plain text, whatever it puts around texts."""
    state = json.loads(tokenizer.library_state())
    for name in ("post_processor", "padding", "truncation"):
        state.pop(name, None)
    return checksum_of_json([state, tokenizer.size, tokenizer.roles])[:16]


class TokenShards:
    """The documents of a corpus as ids, shard by shard; what is not in the folder yet is made when it is asked for.

    `fingerprint` names this very list of sources, read in this way and cut by this tokenizer. It is known at once, and
    so covers what `Source.identity` does: names, sizes and samples of the files. Whether every text is still what it
    was is asked shard by shard, when it is first opened: where the file it came from was written to, its texts are read
    again and compared. A file of tokens that is damaged or not the right one is told of and made anew.
    """

    def __init__(self, sources: Sequence[Source], tokenizer: TextTokenizer, folder: Path | str | None = None) -> None:
        if not sources:
            raise QkvError("There is nothing to tokenise: a corpus needs at least one source.")
        cutting = cutting_of(tokenizer)
        keys = [checksum_of_json([VERSION, cutting, source.identity()])[:32] for source in sources]
        folder = tokens_cache() / cutting if folder is None else Path(folder)
        self._set(list(sources), [source.name for source in sources], keys, tokenizer, folder)

    def _set(
        self,
        sources: list[Source] | None,
        names: list[str],
        keys: list[str],
        tokenizer: TextTokenizer,
        folder: Path,
    ) -> None:
        self.sources = sources  # None: there is only what was made of them
        self.names = names
        self.keys = keys
        self.tokenizer = tokenizer
        self.folder = folder
        self.fingerprint = checksum_of_json(keys)[:16]
        self._seen: dict[int, str] = {}  # which state of its file was found good, by shard

    @classmethod
    def made_before(cls, names: list[str], keys: list[str], tokenizer: TextTokenizer, folder: Path) -> "TokenShards":
        """Shards of which only the files are there: what is damaged or missing cannot be made anew."""
        shards = cls.__new__(cls)
        shards._set(None, names, keys, tokenizer, folder)
        return shards

    def __len__(self) -> int:
        return len(self.keys)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_seen": {}}  # another process looks itself

    def name(self, number: int) -> str:
        """What a person calls the shard: file and stretch."""
        return self.names[number]

    def file(self, number: int) -> Path:
        """Where the shard is, or will be."""
        return self.folder / f"{self.keys[number]}.safetensors"

    def documents(self, number: int) -> Documents:
        """The documents of a shard, their ids left on disk until they are used; made first where they are not there.

        There may be none, where nothing in a source could be read.
        """
        return self._opened(number).documents

    def problems(self, number: int) -> tuple[list[Problem], int]:
        """(the first problems that a shard's source had, how many it had)."""
        made = made_of(self._opened(number))
        return made.problems, made.problem_count

    def prepare(
        self,
        numbers: Sequence[int] | None = None,
        workers: int = 1,
        made: Callable[[int, Made], None] | None = None,
        patience: float = LONG,
    ) -> None:
        """Make the shards that are not there yet; what is there and good stays.

        Several workers are processes, each with a shard at a time; a single one is this process with all its cores.
        `made` is told of every shard when it is there. The files are the same whoever makes them.
        """
        wanted = list(range(len(self)) if numbers is None else numbers)
        if workers < 1:
            raise QkvError(f"{workers} workers make nothing: give at least 1.")
        self.follow(self._all_made(wanted, min(workers, len(wanted)), patience), made, len(wanted) == len(self))

    def follow(
        self, outcomes: Iterator[tuple[int, Made]], made: Callable[[int, Made], None] | None = None, whole: bool = True
    ) -> None:
        """Pass on what comes of shards while they are made elsewhere; a `whole` corpus must hold some document."""
        first, documents = None, 0
        for number, one in outcomes:
            self._tell(one.told)
            documents += one.documents
            first = first or (one.problems[0] if one.problems else None)
            if made is not None:
                made(number, one)
        if whole and not documents:
            reason = f"; the first problem is {first}" if first else ""
            raise QkvError(f"There is no document in the corpus{reason}.")

    def _all_made(self, wanted: list[int], workers: int, patience: float) -> Iterator[tuple[int, Made]]:
        if workers <= 1:
            yield from ((number, self.ensure(number)) for number in wanted)
            return
        if self.sources is not None:  # the large ones first, so that no worker is left with one at the end
            sizes = [source.size for source in self.sources]
            wanted = sorted(wanted, key=lambda number: -sizes[number])
        others = InProcesses(
            partial(_ensure, self, wanted),
            workers,
            patience,
            named=lambda place: f"the tokens of {self.names[wanted[place]]}" if place < len(wanted) else "nothing",
        )
        for place, number in enumerate(wanted):
            one = others(place)
            assert one is not None
            yield number, one

    def ensure(self, number: int) -> Made:
        """Make a shard unless it is there and good; says what is there now, and what a person should be told."""
        told: list[str] = []
        try:
            found = self._good(number)
        except DamagedTokens as error:
            found = None
            told.append(f"{error} The shard {self.names[number]} is made anew.")
            if self.sources is None:
                raise QkvError(f"The shard {self.names[number]} cannot be used: {error} Tokenise it again.") from error
        if found is None:
            found = self._make(number)
        return made_of(found, told)

    def _make(self, number: int) -> TokenFile:
        if self.sources is None:
            raise QkvError(f"The shard {self.names[number]} is not in {self.folder} yet: tokenise it first.")
        with alone(self.file(number)):
            try:
                found = self._good(number)  # another process may have been quicker
            except DamagedTokens:
                found = None
            if found is None:
                make_tokens(self.sources[number], self.tokenizer, self.keys[number], self.file(number))
        return found or self._read(number)

    def _opened(self, number: int) -> TokenFile:
        self._tell(self.ensure(number).told)
        return self._read(number)

    def _read(self, number: int, verify: bool = False) -> TokenFile:
        return open_token_file(self.file(number), vocabulary=self.tokenizer.size, verify=verify)

    def _good(self, number: int) -> TokenFile | None:
        """The shard's file, if there is one; raises `DamagedTokens` where it cannot be used."""
        try:
            state = self.file(number).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        source = None if self.sources is None else self.sources[number]
        stamp = None if source is None else source.stamp()
        mark = f"{state.st_ino}:{state.st_size}:{state.st_mtime_ns}:{stamp}"
        if self._seen.get(number) == mark:
            return self._read(number)
        found = self._read(number, verify=True)
        if found.notes.get("key") != self.keys[number]:
            raise DamagedTokens(f"{self.file(number)} holds the tokens of something else.")
        made_of(found)  # raises where that cannot be told
        if source is not None and found.notes.get("stamp") != stamp and found.notes.get("texts") != text_hash(source):
            raise DamagedTokens(f"{self.file(number)} was made from other texts than there are now.")
        self._seen[number] = mark
        return found

    def _tell(self, told: Sequence[str]) -> None:
        for sentence in told:
            warnings.warn(sentence, QkvWarning, stacklevel=3)


def _ensure(shards: TokenShards, wanted: Sequence[int], place: int) -> Made | None:
    """For another process: it has one core."""
    if place >= len(wanted):
        return None
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return shards.ensure(wanted[place])
