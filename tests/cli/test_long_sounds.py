"""An hour of sound takes the memory of minutes."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from qkv.data.letters import Letters, write_letters
from qkv.data.sound_features import FilterBank, LogMel
from qkv.data.sound_processor import write_sound_processor
from qkv.generate.sound_readers import SoundClassifier
from qkv.models.catalogue import build
from qkv.models.head_choice import HeadChoice
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published
from qkv.weights.save import save_model
from tests.generate.speech import END, GENERATION, SIZES, START, tokenizer
from tests.generate.test_sound_readers import SIZES as PICTURE_SIZES
from tests.models.small import perturb
from tests.models.small_sounds import LABELS, new_sound

RATE = 32_000
# An hour of 32 kHz stereo is 460 MB as it is played, and 920 MB as floats; what a random model writes is most of this.
ROOM = 200 * 2**20  # bytes


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Five minutes and an hour in stereo, by minutes."""
    folder = tmp_path_factory.mktemp("sounds")
    time = np.arange(60 * RATE) / RATE
    minute = (9000 * np.sin(2 * np.pi * 440 * time) * np.sin(5 * time)).astype(np.int16)
    for minutes in (5, 60):
        with soundfile.SoundFile(folder / f"{minutes}.flac", "w", RATE, 2, "PCM_16") as opened:
            for _ in range(minutes):
                opened.write(np.stack([minute, minute], 1))
    return {minutes: folder / f"{minutes}.flac" for minutes in (5, 60)}


def save_names(folder: Path) -> None:
    """An AST that sees ten seconds at once."""
    sizes = replace(PICTURE_SIZES, patch=16, frames=1000, time_stride=16)
    model = build("ast", sizes, HeadChoice("classification", LABELS))
    perturb(model)
    SoundClassifier(model, FilterBank(bands=16, frames=1000)).save(folder)


def save_letters(folder: Path) -> None:
    """A wav2vec 2.0 with fifty frames a second, as the published ones have."""
    save_model(new_sound(kernels=(10, 8, 4), strides=(10, 8, 4)), folder)
    write_letters(folder, Letters(tuple("-|abcde"), space=1))


def save_speech(folder: Path) -> None:
    """A Whisper that hears 30 seconds at once, and finds little to say: a text of chance would end after a second."""
    model = build("whisper", replace(SIZES, source_positions=1500))
    perturb(model)
    with torch.no_grad():
        model.target.tokens.weight[END] = 9 * model.decoder.norm.bias
    save_published(model, folder, PUBLISHED, {"eos_token_id": END, "decoder_start_token_id": START})
    tokenizer().save(folder / "tokenizer.json")
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    write_sound_processor(folder, LogMel(bands=8, seconds=30))


def run(folder: Path, file: Path) -> tuple[str, int]:
    """What `qkv run` writes as a process of its own, and the most bytes that it had in memory."""
    command = [sys.executable, "-m", "qkv", "run", str(folder), str(file), "--device", "cpu", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as started:
        assert started.stdout is not None
        written = started.stdout.read()
        _, status, used = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
    assert started.returncode == 0
    return written, used.ru_maxrss * 1024


@pytest.mark.slow
@pytest.mark.parametrize("save", [save_names, save_letters, save_speech])
def test_an_hour_takes_the_memory_of_minutes(save, sounds: dict[int, Path], tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    save(tmp_path / "model")
    (_, short), (written, hour) = (run(tmp_path / "model", sounds[minutes]) for minutes in (5, 60))
    assert json.loads(written)["input"] == str(sounds[60])
    assert hour - short < ROOM, f"{short:,} and {hour:,} bytes"
