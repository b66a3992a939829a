"""Sounds in memory, ready to be learned from again and again: half precision, since they are many."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.data.safe_path import safe_path
from qkv.data.sound_features import WaveFeatures
from qkv.data.sound_files import SpokenFiles, read_waves
from qkv.errors import QkvError

MANY = 256  # files from which on processes of their own read them
AT_ONCE = 32  # files that a process reads before it hands them over
MOST_PROCESSES = 8


@dataclass(frozen=True)
class SpokenWaves:
    """Sounds as a model reads them [t], and what is said in each."""

    waves: Sequence[Tensor]
    texts: Sequence[str]

    def __post_init__(self) -> None:
        if len(self.waves) != len(self.texts) or not self.waves:
            raise QkvError(f"There are {len(self.waves)} sounds and {len(self.texts)} texts: each needs its own.")

    def __len__(self) -> int:
        return len(self.waves)


def stored_waves(
    files: Sequence[Path | str], features: WaveFeatures, *, most_seconds: float = 60.0, processes: int | None = None
) -> list[Tensor]:
    """The samples [t] of each file as a model reads them, float16; many files are read by several processes."""
    if processes is None:
        processes = 1 if len(files) < MANY else min(MOST_PROCESSES, os.cpu_count() or 1)
    read = partial(_read, features=features, most_seconds=most_seconds)
    if processes == 1:
        return [torch.from_numpy(wave) for wave in read(files)]
    groups = [files[first : first + AT_ONCE] for first in range(0, len(files), AT_ONCE)]
    with safe_path(), ProcessPoolExecutor(processes, get_context("spawn"), torch.set_num_threads, (1,)) as workers:
        return [torch.from_numpy(wave) for some in workers.map(read, groups) for wave in some]


def _read(files: Iterable[Path | str], features: WaveFeatures, most_seconds: float) -> list[NDArray[Any]]:
    """As arrays, which are sent between processes as they are."""
    return [wave.half().numpy() for wave in read_waves(files, features.rate, features, most_seconds=most_seconds)]


def stored_speech(spoken: SpokenFiles, features: WaveFeatures, *, most_seconds: float = 60.0) -> SpokenWaves:
    return SpokenWaves(stored_waves(spoken.files, features, most_seconds=most_seconds), spoken.texts)


@dataclass(frozen=True)
class JoinedSounds:
    """Sounds one after the other, cut into rows of one length; in another order each epoch.

    Many recordings are shorter than what a model should hear at once, and rows of one length need no padding. Rows hold
    sounds of one group, such as one speaker's; what is left at the end of a group is a shorter row, or left out of the
    epoch where it is shorter than `least`.
    """

    waves: Sequence[Tensor]  # [t]
    length: int  # samples of a row
    groups: Sequence[str] | None = None  # of each sound; None: all are one
    least: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.length:
            raise QkvError(f"Rows of {self.length} samples cannot have {self.least} at least.")
        if self.groups is not None and len(self.groups) != len(self.waves):
            raise QkvError(f"There are {len(self.waves)} sounds and {len(self.groups)} names of groups.")
        if not any(sum(len(self.waves[number]) for number in each) >= self.least for each in self._members()):
            raise QkvError(f"There is too little sound: a row needs {self.least} samples at least.")

    def __call__(self, epoch: int) -> list[Tensor]:
        random = np.random.default_rng([self.seed, epoch])
        rows: list[Tensor] = []
        for members in self._members():
            order = random.permutation(len(members))
            joined = torch.cat([self.waves[members[number]] for number in order])
            rows += [row for row in joined.split(self.length) if len(row) >= self.least]
        return rows

    def _members(self) -> Iterator[list[int]]:
        """The numbers of the sounds of each group."""
        found: dict[str, list[int]] = {}
        for number in range(len(self.waves)):
            found.setdefault("" if self.groups is None else self.groups[number], []).append(number)
        yield from found.values()
