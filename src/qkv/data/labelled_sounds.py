"""Sounds with a class each, as rows to learn from: waves, or pictures of them that were made once.

Shapes: b rows of a batch, t samples, m mel bands, n frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from qkv.data.augment.sounds import WaveMixing
from qkv.data.augment.steps import Augmentation
from qkv.data.plan import PlannedBatch
from qkv.data.rows import seed_of
from qkv.data.sound_features import FilterBank, SoundFeatures
from qkv.data.sound_files import LabelledFiles, read_waves
from qkv.data.sound_rows import SoundBatch, SoundRows
from qkv.data.table import Problem
from qkv.data.text_rows import with_filler
from qkv.data.token_rows import Ints
from qkv.errors import QkvError


@dataclass(frozen=True)
class LabelledSoundBatch(SoundBatch):
    labels: Tensor  # [b] long, -1 in filler rows
    labelled: int  # rows that are no filler
    seed: int = 0  # what is drawn for this batch is drawn from it
    augment: Augmentation | None = None
    mixing: WaveMixing | None = None

    def prepared(self, features: SoundFeatures | None = None) -> PreparedSounds:
        """The sounds as a model reads them, mixed and changed where they are to be, on the device they are on.

        Without `features` they are prepared already. Asked again, a batch gives the same.
        """
        # Where nothing is drawn the seed says nothing: then a step is the same for all batches, and can be recorded.
        draw = np.random.default_rng(0 if self.augment is None and self.mixing is None else self.seed)
        values, lengths, others = self.waves, self.lengths, self.labels
        kept = torch.ones(len(values), device=values.device)
        if self.mixing is not None:
            mixed = self.mixing(values, draw, self.labelled)
            values, kept, others = mixed.images, mixed.kept, self.labels[mixed.partners]
            lengths = torch.maximum(lengths, lengths[mixed.partners])
        if features is not None:
            made = features(values, lengths)
            values, lengths = made.values, made.lengths
        if self.augment is not None:
            values = self.augment(values, draw)
        return PreparedSounds(values, lengths, self.labels, others, kept)


@dataclass(frozen=True)
class PreparedSounds:
    """What a model reads, and the classes of each sound: its own, and that of the one it is mixed with."""

    values: Tensor  # [b t], or [b 1 m n]
    lengths: Tensor  # [b] samples or frames
    labels: Tensor  # [b] long, -1 in filler rows
    others: Tensor  # [b] long, the same where nothing is mixed
    kept: Tensor  # [b] float32: how much of the sound is of its own class


@dataclass(frozen=True)
class LabelledSounds(SoundRows):
    """Sounds and the number of each one's class.

    With `anew`, what is drawn (to change sounds, and to cut them) is other in each epoch and the same when a run is
    resumed.
    """

    labels: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # [rows]
    names: tuple[str, ...] = ()  # of all classes, in the order of a model's logits
    window: int | None = None  # of a longer sound so many samples or frames are taken, from anywhere
    seed: int = 0
    epoch: int = 0
    augment: Augmentation | None = None
    mixing: WaveMixing | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.labels) != len(self.waves):
            raise QkvError(f"Each sound has one label, but there are {len(self.waves)} and {len(self.labels)}.")
        if not 0 <= self.labels.min() <= self.labels.max() < len(self.names):
            raise QkvError(f"The labels should be from 0 to {len(self.names) - 1}, one for each of the class names.")

    @property
    def sizes(self) -> tuple[Ints, Ints]:
        whole, targets = super().sizes
        return whole if self.window is None else whole.clip(max=self.window), targets

    def batch(self, planned: PlannedBatch) -> LabelledSoundBatch:
        labels = with_filler(self.labels, planned, -1)
        seed = seed_of(self.seed, self.epoch, planned)
        draw = np.random.default_rng([seed, 0])  # what changes the batch later is drawn from the seed alone

        def cut(wave: Tensor) -> Tensor:
            if self.window is None or wave.shape[-1] <= self.window:
                return wave
            start = int(draw.integers(wave.shape[-1] - self.window + 1))
            return wave[..., start : start + self.window]

        waves, lengths = self.rectangle(planned, cut)
        return LabelledSoundBatch(waves, lengths, labels, len(planned.rows), seed, self.augment, self.mixing)

    def anew(
        self, seed: int = 0, augment: Augmentation | None = None, mixing: WaveMixing | None = None
    ) -> Callable[[int], LabelledSounds]:
        """For `Batches`: the same sounds in every epoch, changed in other ways. What is validated on stays plain."""
        return lambda epoch: replace(self, seed=seed, epoch=epoch, augment=augment, mixing=mixing)

    def some(self, places: Sequence[int] | Ints) -> LabelledSounds:
        """Some of the sounds."""
        return replace(self, waves=[self.waves[int(place)] for place in places], labels=self.labels[np.asarray(places)])

    def made(self, features: SoundFeatures) -> LabelledSounds:
        """The same, prepared once for all epochs; a picture is as long as its sound, or as `features` have it."""
        return replace(self, waves=[_made(wave, features) for wave in self.waves])

    def divided(self, window: int, shortest: int) -> LabelledSounds:
        """Sounds that are longer than a window as windows one after the other, as they are heard when a model is used.

        What is left over counts from `shortest` samples on.
        """
        parts = [
            (part, label)
            for wave, label in zip(self.waves, self.labels.tolist(), strict=True)
            for number, part in enumerate(wave.split(window, -1))
            if number == 0 or part.shape[-1] >= shortest
        ]
        return replace(self, waves=[part for part, _ in parts], labels=np.array([label for _, label in parts]))


def _made(wave: Tensor, features: SoundFeatures) -> Tensor:
    if isinstance(features, FilterBank):
        features = replace(features, frames=max(features.frames, features.count(len(wave))))
    return features(wave[None]).values[0]


def measured_bank(sounds: LabelledSounds, bands: int, frames: int) -> FilterBank:
    """Pictures of these sounds, normalised by the mean and the deviation that their own values have. [gong2021 §3.1]"""
    plain = FilterBank(bands=bands, frames=1, normalise=False)
    values = torch.cat([_made(wave, plain).flatten() for wave in sounds.waves]).double()
    deviation = float(values.std())
    if not deviation > 0:
        raise QkvError("All sounds are silent, so there is nothing to learn from.")
    return FilterBank(bands=bands, frames=frames, mean=float(values.mean()), deviation=deviation)


def read_labelled_sounds(
    files: LabelledFiles, rate: int, *, most_seconds: float = 60.0
) -> tuple[LabelledSounds, list[Problem]]:
    """The waves of sound files at one rate. Bad files are left out.

    What comes back beside the rows says which, and why; only if none can be read it is an error.
    """
    problems = list(files.problems)
    waves: list[Tensor] = []
    good: list[int] = []
    for place, file in enumerate(files.files):
        try:
            waves += read_waves([file], rate, most_seconds=most_seconds)
            good.append(place)
        except QkvError as error:
            problems.append(Problem("sound", place + 1, str(error)))
    if not good:
        raise QkvError(f"None of the {len(files)} sounds can be used; the first problem is {problems[0]}.")
    return LabelledSounds(waves, files.numbers()[good], files.names), problems
