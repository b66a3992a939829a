"""Source and target texts as ids, and the batches that a sequence-to-sequence model trains on.

Shapes: b rows of a batch, s source tokens, t target tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.ahead import Ahead, prefetched
from qkv.data.plan import Batching, PlannedBatch, TokenBudget
from qkv.data.token_rows import Ints, TokenRows
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError


@dataclass(frozen=True)
class PairBatch:
    """Padded pairs. Sources end with `</s>`; targets go from `<s>` to `</s>`."""

    source: Tensor  # [b s] long, right-padded with pad
    source_lengths: Tensor  # [b]
    target: Tensor  # [b t] long: <s> y1 ... yn </s>, right-padded
    target_lengths: Tensor  # [b], <s> and </s> included
    predicted: int | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.predicted is None:
            object.__setattr__(self, "predicted", int((self.target_lengths - 1).sum()))

    @property
    def target_tokens(self) -> int:
        """How many tokens are predicted: all but each row's `<s>`. Counted once: asking never waits for a GPU."""
        assert self.predicted is not None
        return self.predicted

    def to(self, device: torch.device | str) -> "PairBatch":
        """The batch on a device; from pinned memory the copy runs beside the computation."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "PairBatch":
        return self._each(lambda tensor: tensor.pin_memory())

    def _each(self, change: Callable[[Tensor], Tensor]) -> "PairBatch":
        return replace(
            self,
            source=change(self.source),
            source_lengths=change(self.source_lengths),
            target=change(self.target),
            target_lengths=change(self.target_lengths),
        )


@dataclass(frozen=True)
class Pairs:
    """All the pairs of a data set as ids, special tokens included."""

    source: TokenRows
    target: TokenRows
    original: Ints  # [n]: the place of each row among the texts that were given
    dropped: int = 0  # pairs left out because a side was too long

    @classmethod
    def from_texts(
        cls,
        sources: Sequence[str],
        targets: Sequence[str],
        source_tokenizer: TextTokenizer,
        target_tokenizer: TextTokenizer,
        *,
        max_length: int | None = None,
        subword_dropout: float = 0.0,
    ) -> "Pairs":
        """Encode texts; a pair with a side of more than `max_length` tokens (special ones not counted) is dropped."""
        return cls.from_ids(
            source_tokenizer.encode(sources, subword_dropout=subword_dropout),
            target_tokenizer.encode(targets, subword_dropout=subword_dropout),
            source_ends=(source_tokenizer.pad, source_tokenizer.end),
            target_ends=(target_tokenizer.pad, target_tokenizer.start, target_tokenizer.end),
            max_length=max_length,
        )

    @classmethod
    def from_ids(
        cls,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        *,
        source_ends: tuple[int, int] = (0, 2),
        target_ends: tuple[int, int, int] = (0, 1, 2),
        max_length: int | None = None,
    ) -> "Pairs":
        """Pairs from ids without special tokens; `source_ends` is (pad, end), `target_ends` is (pad, start, end)."""
        if len(sources) != len(targets):
            raise QkvError(f"Pairs need as many sources as targets, but there are {len(sources)} and {len(targets)}.")
        longest = np.fromiter(map(max, map(len, sources), map(len, targets)), np.int64, count=len(sources))
        original = np.flatnonzero(longest <= (np.inf if max_length is None else max_length))
        kept = original.tolist()
        if not kept:
            limit = "" if max_length is None else f" of at most {max_length} tokens"
            raise QkvError(f"There is no pair{limit} among the {len(sources)} given.")
        source_pad, source_end = source_ends
        target_pad, target_start, target_end = target_ends
        return cls(
            source=TokenRows.from_lists(([*sources[i], source_end] for i in kept), source_pad),
            target=TokenRows.from_lists(([target_start, *targets[i], target_end] for i in kept), target_pad),
            original=original,
            dropped=len(sources) - len(kept),
        )

    def __len__(self) -> int:
        return len(self.original)

    def batch(self, planned: PlannedBatch) -> PairBatch:
        """The padded tensors of a planned batch."""
        # A filler row is the first row cut down to one token a side: valid to attend to, with nothing to predict.
        rows = np.concatenate([planned.rows, np.repeat(planned.rows[:1], planned.filler)])  # [b]
        source_lengths, target_lengths = self.source.lengths_of(rows), self.target.lengths_of(rows)
        source_lengths[len(planned.rows) :] = 1
        target_lengths[len(planned.rows) :] = 1
        return PairBatch(
            source=torch.from_numpy(self.source.padded(rows, source_lengths, planned.source_width)),
            source_lengths=torch.from_numpy(source_lengths),
            target=torch.from_numpy(self.target.padded(rows, target_lengths, planned.target_width)),
            target_lengths=torch.from_numpy(target_lengths),
            predicted=int(target_lengths.sum()) - len(rows),
        )


class PairBatches:
    """Shuffled training batches, epoch after epoch, that know where they are.

    Iterating gives what is left of the current epoch; iterate again for the next. `epoch` and `index` always tell the
    batch to come, and saving and loading them continues with the very same batches, none replayed.

    `pairs` may be a function from epoch to `Pairs`, to cut the texts anew each epoch [provilkov2020]; the next epoch's
    are made in the background meanwhile. Batches depend on lengths, so exact continuation within an epoch then needs a
    function that gives the same pairs for the same epoch, which `TextTokenizer.encode` with dropout does not:
    continuing there keeps the position but regroups the rows.
    """

    def __init__(self, pairs: Pairs | Callable[[int], Pairs], batching: Batching, *, seed: int = 0, prefetch: int = 4):
        self.batching = batching
        self.seed = seed
        self.epoch = 0
        self.index = 0
        self._pairs = pairs
        self._prefetch = prefetch
        self._pin = torch.cuda.is_available()
        self._planned: dict[int, Ahead[tuple[Pairs, list[PlannedBatch]]]] = {}

    def __len__(self) -> int:
        """The number of batches in the current epoch."""
        return len(self._plan(self.epoch)[1])

    def __iter__(self) -> Iterator[PairBatch]:
        pairs, plan = self._plan(self.epoch)
        if self.index >= len(plan):  # only after continuing in an epoch that was cut anew, into fewer batches
            self.epoch, self.index = self.epoch + 1, 0
            pairs, plan = self._plan(self.epoch)
        if callable(self._pairs):
            self._start(self.epoch + 1)
        made = (self._make(pairs, planned) for planned in plan[self.index :])
        for batch in prefetched(made, self._prefetch) if self._prefetch else made:
            self.index += 1
            if self.index == len(plan):
                self.epoch, self.index = self.epoch + 1, 0
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The position, as plain numbers and text."""
        return {"epoch": self.epoch, "index": self.index, "seed": self.seed, "batching": repr(self.batching)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved position, which must come from batches made in the same way."""
        for name, here in (("seed", self.seed), ("batching", repr(self.batching))):
            if state[name] != here:
                raise QkvError(f"The saved position belongs to batches with {name} {state[name]}, not {here}.")
        self.epoch, self.index = int(state["epoch"]), int(state["index"])

    def _make(self, pairs: Pairs, planned: PlannedBatch) -> PairBatch:
        batch = pairs.batch(planned)
        return batch.pin_memory() if self._pin else batch

    def _start(self, epoch: int) -> "Ahead[tuple[Pairs, list[PlannedBatch]]]":
        if epoch not in self._planned:
            self._planned = {kept: ahead for kept, ahead in self._planned.items() if kept == self.epoch}
            self._planned[epoch] = Ahead(lambda: self._compute(epoch))
        return self._planned[epoch]

    def _plan(self, epoch: int) -> tuple[Pairs, list[PlannedBatch]]:
        return self._start(epoch).result()

    def _compute(self, epoch: int) -> tuple[Pairs, list[PlannedBatch]]:
        pairs = self._pairs(epoch) if callable(self._pairs) else self._pairs
        generator = np.random.default_rng([self.seed, epoch])
        batches = self.batching.plan(pairs.source.lengths, pairs.target.lengths, generator)
        return pairs, [batches[i] for i in generator.permutation(len(batches))]


def ordered_batches(pairs: Pairs, max_tokens: int, *, multiple_of: int = 1) -> Iterator[tuple[Ints, PairBatch]]:
    """Every pair once, the longest first (so that too large a batch shows at once), with the rows' original places."""
    plan = TokenBudget(max_tokens, multiple_of).plan(
        pairs.source.lengths, pairs.target.lengths, np.random.default_rng(0)
    )
    for planned in reversed(plan):
        yield pairs.original[planned.rows], pairs.batch(planned)
