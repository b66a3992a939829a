"""The notes of twelve instruments, dealt into folds by pitch, and what a plain regression makes of them."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.labelled_sounds import LabelledSounds, read_labelled_sounds
from qkv.data.sound_files import read_sound_table
from qkv.data.spectra import fbank
from qkv.errors import QkvError
from qkv.train.metrics_of_labels import accuracy, macro_f1

RATE, BANDS = 16000, 128


class Notes(NamedTuple):
    sounds: LabelledSounds
    folds: np.ndarray  # [n]


@cache
def read_notes(corpora: Path, folds: int) -> Notes:
    """All notes, and in which fold each one's pitch is, by a checksum of its name."""
    file = corpora / "notes" / "notes.jsonl"
    sounds, problems = read_labelled_sounds(read_sound_table(file), RATE)
    if problems:
        raise QkvError(f"Every note is needed, and one cannot be read: {problems[0]}. Run `make corpora`.")
    pitches = [json.loads(line)["note"] for line in file.read_text(encoding="utf-8").splitlines()]
    dealt = [hashlib.sha256(pitch.encode()).digest()[0] % folds for pitch in pitches]
    return Notes(sounds, np.array(dealt))


def regression(notes: Notes, *, spread: bool) -> dict[str, Any]:
    """Multinomial logistic regression on the mean of each mel band over a note, and on its deviation where asked."""
    banks = [fbank(wave[None], BANDS)[0] for wave in notes.sounds.waves]  # [frames bands] each
    given = torch.stack([torch.cat((bank.mean(0), bank.std(0))) if spread else bank.mean(0) for bank in banks])
    labels = torch.from_numpy(notes.sounds.labels)
    said = torch.full_like(labels, -1)
    for fold in range(int(notes.folds.max()) + 1):
        tested = torch.from_numpy(notes.folds == fold)
        said[tested] = _fitted(given[~tested], labels[~tested], given[tested], len(notes.sounds.names))
    table = np.zeros((len(notes.sounds.names),) * 2, int)
    np.add.at(table, (labels.numpy(), said.numpy()), 1)
    return {
        "accuracy": [accuracy(said.tolist(), labels.tolist())],
        "macro_f1": [macro_f1(said.tolist(), labels.tolist())],
        "said": table.tolist(),
    }


def _fitted(given: Tensor, labels: Tensor, asked: Tensor, classes: int, penalty: float = 1e-2) -> Tensor:
    mean, deviation = given.mean(0), given.std(0) + 1e-6
    given, asked = (given - mean) / deviation, (asked - mean) / deviation
    weight = torch.zeros(given.shape[1], classes, requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=200)

    def loss() -> Tensor:
        optimizer.zero_grad()
        total = F.cross_entropy(given @ weight + bias, labels) + penalty * weight.square().sum() / 2
        total.backward()
        return total

    optimizer.step(loss)  # type: ignore[arg-type]  # a tensor serves as the number
    with torch.no_grad():
        return (asked @ weight + bias).argmax(1)
