"""Sounds as rows to learn from: with what was said in them, or with hidden frames to find again.

Shapes: b rows of a batch, t samples, n frames, l letters, m hidden frames of the batch, k distractors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from qkv.data.plan import PlannedBatch
from qkv.data.rows import TensorBatch, single
from qkv.data.span_hiding import SpanHiding, draw_distractors
from qkv.data.token_rows import Ints
from qkv.errors import QkvError

FrameCount = Callable[[Tensor], Tensor]  # samples of each row -> frames: `model.frames.frames_of`


@dataclass(frozen=True)
class SoundBatch(TensorBatch):
    """Waves with silence on the right."""

    waves: Tensor  # [b t]
    lengths: Tensor  # [b] samples


@dataclass(frozen=True)
class SpokenBatch(SoundBatch):
    """Waves and what is said in them."""

    letters: Tensor  # [b l] long
    letter_lengths: Tensor  # [b]
    frame_lengths: Tensor  # [b]
    hidden_frames: Tensor | None  # [b n] bool
    hidden_channels: Tensor | None  # [b d] bool
    spoken: int  # letters in all


@dataclass(frozen=True)
class HiddenBatch(SoundBatch):
    """Waves of which frames are hidden, and for each hidden one others to tell it from."""

    hidden_frames: Tensor  # [b n] bool
    places: Tensor  # [m] long: row · n + frame of each hidden one
    distractors: Tensor  # [m k] long: the same of others in its row


@dataclass(frozen=True)
class SoundRows:
    """Waves [t] of one rate, prepared as the model wants them; pictures of sounds [1 m n] are batched alike."""

    waves: Sequence[Tensor]

    def __post_init__(self) -> None:
        if not self.waves:
            raise QkvError("There is no sound: at least one is needed.")

    def __len__(self) -> int:
        return len(self.waves)

    @property
    def original(self) -> Ints:
        return np.arange(len(self))

    @property
    def sizes(self) -> tuple[Ints, Ints]:
        return single(np.array([wave.shape[-1] for wave in self.waves]))

    def rectangle(self, planned: PlannedBatch, cut: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """[b … t] and [b], each wave cut where it is to be; filler rows repeat the first sound, since silence of no
        length cannot be heard."""
        waves = [self.waves[row] if cut is None else cut(self.waves[row]) for row in planned.rows.tolist()]
        waves += waves[:1] * planned.filler
        table = torch.zeros(len(waves), *waves[0].shape[:-1], planned.source_width)
        for place, wave in enumerate(waves):
            table[place, ..., : wave.shape[-1]] = wave
        return table, torch.tensor([wave.shape[-1] for wave in waves])

    def batch(self, planned: PlannedBatch) -> SoundBatch:
        return SoundBatch(*self.rectangle(planned))


@dataclass(frozen=True)
class SpokenRows(SoundRows):
    """Sounds and the letters that are said in them; spans are hidden anew in every epoch, where any are."""

    letters: Sequence[Sequence[int]] = ()
    frames: FrameCount = field(kw_only=True)
    hide_frames: SpanHiding | None = None
    hide_channels: SpanHiding | None = None
    width: int = 0  # of the stream, where channels are hidden
    epoch: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.letters) != len(self.waves):
            raise QkvError(f"There are {len(self.waves)} sounds and {len(self.letters)} texts: each needs its own.")
        counts = self.frames(torch.tensor([len(wave) for wave in self.waves])).tolist()
        for row, (text, count) in enumerate(zip(self.letters, counts, strict=True)):
            doubled = sum(one == other for one, other in pairwise(text))
            if len(text) + doubled > count:
                raise QkvError(
                    f"Sound {row} has {count} frames, too few for its {len(text)} letters: a letter needs one frame, "
                    "and two alike a blank between them."
                )

    def batch(self, planned: PlannedBatch) -> SpokenBatch:
        waves, lengths = self.rectangle(planned)
        texts = [list(self.letters[row]) for row in planned.rows.tolist()] + [[] for _ in range(planned.filler)]
        longest = max(1, *(len(text) for text in texts))
        letters = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
        counts = self.frames(lengths)
        slots = int(self.frames(torch.tensor(planned.source_width)))
        random = np.random.default_rng([self.seed, self.epoch, *planned.rows.tolist()])
        hidden = None if self.hide_frames is None else self.hide_frames.draw(counts, slots, random)
        channels = None
        if self.hide_channels is not None:
            channels = self.hide_channels.draw(torch.full((len(waves),), self.width), self.width, random)
        return SpokenBatch(
            waves=waves,
            lengths=lengths,
            letters=letters,
            letter_lengths=torch.tensor([len(text) for text in texts]),
            frame_lengths=counts,
            hidden_frames=hidden,
            hidden_channels=channels,
            spoken=sum(len(text) for text in texts),
        )


@dataclass(frozen=True)
class HiddenRows(SoundRows):
    """Sounds alone, to learn from without anyone saying what is said. [baevski2020 §3]"""

    frames: FrameCount = field(kw_only=True)
    hide: SpanHiding = SpanHiding(0.65, 10, 2)  # noqa: RUF009 (frozen)
    distractors: int = 100
    epoch: int = 0
    seed: int = 0

    def batch(self, planned: PlannedBatch) -> HiddenBatch:
        waves, lengths = self.rectangle(planned)
        counts = self.frames(lengths)
        random = np.random.default_rng([self.seed, self.epoch, *planned.rows.tolist()])
        hidden = self.hide.draw(counts, int(self.frames(torch.tensor(planned.source_width))), random)
        hidden[len(planned.rows) :] = False
        if not hidden.any():
            raise QkvError(f"No span of {self.hide.length} frames fits into these sounds: give longer ones.")
        rows, places = hidden.nonzero().unbind(1)
        first = rows * hidden.shape[1]
        others = draw_distractors(hidden, self.distractors, random)[rows, places]
        return HiddenBatch(
            waves=waves,
            lengths=lengths,
            hidden_frames=hidden,
            places=first + places,
            distractors=first[:, None] + others,
        )
