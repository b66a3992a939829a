"""Source and target texts as ids, and the batches that a sequence-to-sequence model trains on.

Shapes: b rows of a batch, s source tokens, t target tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from qkv.data.plan import PlannedBatch
from qkv.data.rows import TensorBatch
from qkv.data.token_rows import Ints, TokenRows
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError


@dataclass(frozen=True)
class PairBatch(TensorBatch):
    """Padded pairs. Sources end with `</s>`; targets go from `<s>` to `</s>`."""

    source: Tensor  # [b s] long, right-padded with pad
    source_lengths: Tensor  # [b]
    target: Tensor  # [b t] long: <s> y1 ... yn </s>, right-padded
    target_lengths: Tensor  # [b], <s> and </s> included
    predicted: int | None = field(default=None, repr=False)
    padded: bool | None = field(default=None, repr=False)  # whether a source is shorter than its row

    def __post_init__(self) -> None:
        if self.predicted is None:
            object.__setattr__(self, "predicted", int((self.target_lengths - 1).sum()))
        if self.padded is None:
            object.__setattr__(self, "padded", bool((self.source_lengths < self.source.shape[1]).any()))

    @property
    def target_tokens(self) -> int:
        """How many tokens are predicted: all but each row's `<s>`. Counted once: asking never waits for a GPU."""
        assert self.predicted is not None
        return self.predicted

    @property
    def padding(self) -> Tensor | None:
        """The lengths of the sources where some are padded. Where none is, attention needs no mask and is faster."""
        return self.source_lengths if self.padded else None


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

    @property
    def sizes(self) -> tuple[Ints, Ints]:
        return self.source.lengths, self.target.lengths

    def batch(self, planned: PlannedBatch) -> PairBatch:
        """The padded tensors of a planned batch."""
        # A filler row is cut down to one token a side: valid to attend to, with nothing to predict.
        source, source_lengths = self.source.rectangle(planned.rows, planned.source_width, planned.filler)
        target, target_lengths = self.target.rectangle(planned.rows, planned.target_width, planned.filler)
        return PairBatch(
            source=torch.from_numpy(source),
            source_lengths=torch.from_numpy(source_lengths),
            target=torch.from_numpy(target),
            target_lengths=torch.from_numpy(target_lengths),
            predicted=int(target_lengths.sum()) - len(target_lengths),
            padded=bool((source_lengths < source.shape[1]).any()),
        )
