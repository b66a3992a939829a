"""From sound files to a model that writes what it hears, through the training loop and back from its folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from qkv.data.batches import Batches
from qkv.data.letters import Letters, write_letters
from qkv.data.plan import TokenBudget
from qkv.data.sound_features import WaveFeatures
from qkv.data.sound_files import read_spoken_table, read_waves
from qkv.data.sound_processor import write_sound_processor
from qkv.data.sound_rows import HiddenRows, SpokenRows
from qkv.data.span_hiding import SpanHiding
from qkv.generate.listen import Listener
from qkv.models.catalogue import build
from qkv.models.head_choice import HeadChoice
from qkv.models.sound_model import SoundModel
from qkv.train.loop import train
from qkv.train.objectives.ctc import CTCLoss
from qkv.train.objectives.sound_pretraining import FrameLoss
from qkv.train.optimizers import adam
from qkv.train.run_folder import RunFolder
from qkv.train.schedules import Constant
from qkv.train.settings import TrainSettings
from qkv.weights.load import with_head
from qkv.weights.save import save_model
from tests.models.small_sounds import KINDS
from tests.train.tiny import quiet

PITCH = {"a": 300.0, "b": 800.0, "c": 1700.0}
TEXTS = ["ab", "ba", "cab", "a c", "b b", "abc", "c", "bca"]
RATE = 4000


def speak(text: str) -> np.ndarray:
    """Each letter a tone of 50 ms, with pauses between."""
    time = np.arange(RATE // 20) / RATE
    parts = [np.zeros(RATE // 25)]
    for letter in text:
        parts.append(np.sin(2 * np.pi * PITCH[letter] * time) * 0.5 if letter in PITCH else np.zeros(RATE // 10))
        parts.append(np.zeros(RATE // 25))
    return np.concatenate(parts)


def run(model: SoundModel, objective: Any, batches: Batches[Any], folder: Path, steps: int, rate: float) -> None:
    train(
        model,
        objective,
        batches,
        TrainSettings(steps=steps, log_every=steps, device="cpu"),
        RunFolder(folder, save_model=save_model),
        optimizer=adam(model, learning_rate=rate),
        schedule=Constant(),
        reporter=quiet(),
    )


@pytest.mark.slow
def test_from_files_to_text(tmp_path: Path) -> None:
    torch.manual_seed(0)
    lines = ["file,text"]
    for number, text in enumerate(TEXTS):
        soundfile.write(tmp_path / f"{number}.wav", speak(text), RATE)
        lines.append(f"{number}.wav,{text}")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    spoken, features = read_spoken_table(tmp_path / "table.csv"), WaveFeatures(rate=RATE)
    waves, letters = list(read_waves(spoken.files, RATE, features)), Letters.of_texts(TEXTS)
    sizes = replace(KINDS["prenorm"], vocabulary=len(letters), channels=(24, 24, 24), width=24, hidden=48)
    model = build("wav2vec2", sizes, HeadChoice("pretraining"))

    def hidden(epoch: int) -> HiddenRows:
        hide = SpanHiding(0.4, 3, 1)
        return HiddenRows(waves, frames=model.frames.frames_of, hide=hide, distractors=5, epoch=epoch)

    run(model, FrameLoss(), Batches(hidden, TokenBudget(8000)), tmp_path / "first", 5, 1e-3)
    writer = with_head(model, HeadChoice("ctc"))

    def said(epoch: int) -> SpokenRows:
        hide = SpanHiding(0.05, 2)
        ids = [letters.encode(text) for text in spoken.texts]
        return SpokenRows(waves, ids, frames=writer.frames.frames_of, hide_frames=hide, epoch=epoch)

    run(writer, CTCLoss(blank=letters.blank), Batches(said, TokenBudget(8000)), tmp_path / "second", 200, 5e-3)
    folder = tmp_path / "model"
    save_model(writer.eval(), folder)
    write_letters(folder, letters)
    write_sound_processor(folder, features)
    found = Listener.load(folder).run(spoken.files)
    right = sum(one.text == text for one, text in zip(found, TEXTS, strict=True))
    assert right >= 6, [one.text for one in found]
