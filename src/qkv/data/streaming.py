"""Rows of documents that stay on disk: a window of shards at a time, in an order that a seed gives."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from qkv.data.documents import Documents
from qkv.data.in_processes import InProcesses, now_at
from qkv.data.packing import LanguageBatch, LanguageRows
from qkv.data.rows import Rows
from qkv.data.table import Problem
from qkv.data.token_rows import TokenRows
from qkv.errors import QkvError

WINDOW = 4  # shards that are packed and shuffled together
LIMIT = 3600.0  # seconds after which a process that makes a window is taken to hang
SEEN = 64  # tokens of a document that decide whether it is held out
FACTOR = 0x9E3779B97F4A7C15  # odd, with bits all over


class Shards(Protocol):
    """A corpus in parts that are opened one at a time, such as `TokenShards`."""

    def __len__(self) -> int: ...

    def name(self, number: int) -> str: ...

    def documents(self, number: int) -> Documents: ...

    def problems(self, number: int) -> tuple[list[Problem], int]:
        """The first problems of a shard that was opened, and how many there are."""


class MakeRows(Protocol):
    """`pack` or `stream` of `data/packing.py`, with everything said but the documents and the seed."""

    def __call__(self, documents: Documents, *, seed: int) -> LanguageRows: ...


@dataclass(frozen=True)
class Window:
    """Rows of some shards, and what a person should know of them, by the names of the shards."""

    rows: LanguageRows
    told: dict[str, str]


@dataclass(frozen=True)
class Windows:
    """The windows of a corpus, numbered through all epochs: each epoch has all shards once, in an order of its own.

    A window's documents are shuffled and its rows are too, so how far a document can travel within an epoch depends on
    the number of shards in a window. Documents that `hold_out` takes are left out, wherever they lie.
    """

    shards: Shards
    make: MakeRows
    window: int = WINDOW
    seed: int = 0
    hold_out: float = 0.0

    def __post_init__(self) -> None:
        if self.window < 1:
            raise QkvError(f"A window needs at least one shard, but {self.window} were asked for.")

    @property
    def count(self) -> int:
        """Windows of an epoch."""
        return -(-len(self.shards) // self.window)

    def shards_of(self, number: int) -> list[int]:
        epoch, section = divmod(number, self.count)
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.shards))
        return [int(shard) for shard in order[section * self.window : (section + 1) * self.window]]

    def named(self, number: int) -> str:
        return f"the rows of {', '.join(self.shards.name(shard) for shard in self.shards_of(number))}"

    def __call__(self, number: int) -> Window:
        """A window: the same in any process, for it depends on these values and the number alone."""
        parts, told = [], {}
        for shard in self.shards_of(number):
            name = self.shards.name(shard)
            now_at(f"the rows of {name}")
            parts.append(divided(opened(self.shards, shard), self.hold_out)[0])
            problems, count = self.shards.problems(shard)
            if count:
                told[name] = f"Left out of {name}: {count:,} bad {'rows' if count > 1 else 'row'}, first {problems[0]}"
        now_at(self.named(number))
        documents = Documents.joined(parts)
        if not documents.tokens.lengths.any():  # such as a small shard whose one document is held out
            return Window(LanguageRows.none(), told)
        drawn = np.random.SeedSequence([self.seed, *divmod(number, self.count)])
        return Window(self.make(documents, seed=int(drawn.generate_state(1, np.uint64)[0])), told)


class StreamedRows:
    """The sections of a corpus on disk, for `Batches`; so many processes make the windows to come.

    With no process of their own windows are made in the background thread of `Batches`, which holds Python's lock now
    and then: enough where no GPU waits. Bad rows are told through `say`, once for each shard.
    """

    def __init__(
        self,
        windows: Windows,
        workers: int = 0,
        *,
        limit: float = LIMIT,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.count = windows.count
        self._windows: Callable[[int], Window] = windows
        if workers:
            self._windows = InProcesses(windows, workers, limit=limit, named=windows.named)
        self._say, self._told = say, set[str]()

    def rows(self, epoch: int, section: int) -> Rows[LanguageBatch]:
        window = self._windows(epoch * self.count + section)
        for name, sentence in window.told.items():
            if name not in self._told:
                self._told.add(name)
                self._say(sentence)
        return window.rows


def opened(shards: Shards, number: int) -> Documents:
    """A shard's documents; whatever goes wrong with it is told with its name."""
    name = shards.name(number)
    try:
        return shards.documents(number)
    except QkvError as error:
        if name in str(error):
            raise
        raise QkvError(f"The shard {name} cannot be read. {error}") from error
    except (OSError, ValueError, EOFError) as error:
        raise QkvError(f"The shard {name} cannot be read: {error}. Mend it and resume the run.") from error


def divided(documents: Documents, share: float) -> tuple[Documents, Documents]:
    """(to train on, held out), by a hash of each document's first tokens and its length.

    So equal texts stay together, in whatever shards they lie, and a corpus that grows keeps what it held out.
    """
    if not 0 <= share <= 1:
        raise QkvError(f"The share to hold out must lie between 0 and 1, but is {share}.")
    if not share:
        return documents, documents.chosen(np.zeros(0, np.int64))
    held = chances(documents.tokens) < share
    return documents.chosen(np.flatnonzero(~held)), documents.chosen(np.flatnonzero(held))


def chances(tokens: TokenRows) -> NDArray[np.float64]:
    """A number from 0 to 1 for each document, as if drawn at random, but given by its tokens. [n]"""
    lengths = tokens.lengths
    every = np.arange(len(tokens))
    first = tokens.padded(every, np.minimum(lengths, SEEN), SEEN) if len(tokens.ids) else np.zeros((len(every), SEEN))
    powers = np.cumprod(np.full(SEEN, FACTOR, np.uint64))  # whole numbers of 64 bits, which wrap around
    mixed = ((first.astype(np.uint64) + np.uint64(1)) * powers).sum(1, dtype=np.uint64)
    mixed ^= lengths.astype(np.uint64) * np.uint64(FACTOR)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # each bit decides on all others
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed ^ (mixed >> np.uint64(31))).astype(np.float64) / 2**64


def held_out_of(shards: Shards, share: float, tokens: int, window: int = WINDOW) -> Documents:
    """Documents to validate on, out of the first shards: at most so many tokens, or one document."""
    parts, found = [], 0
    for number in range(min(window, len(shards))):
        held = divided(opened(shards, number), share)[1]
        room = np.searchsorted(np.cumsum(held.tokens.lengths), tokens - found, side="right")
        parts.append(held.chosen(np.arange(max(int(room), int(not found and len(held) > 0)))))
        found += int(parts[-1].tokens.lengths.sum())
        if room < len(held):
            break
    return Documents.joined(parts)
