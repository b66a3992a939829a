"""`qkv run` with sounds."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from qkv.data.letters import Letters, write_letters
from qkv.data.sound_features import WaveFeatures
from qkv.generate.sound_readers import SoundClassifier, SoundEncoder, SoundStateReader
from qkv.weights.save import save_model
from tests.cli.command import qkv
from tests.generate.test_sound_readers import BANK, small_ast
from tests.models.small_sounds import LABELS, small_sound


@pytest.fixture
def clips(tmp_path: Path) -> list[Path]:
    files = [tmp_path / "one.wav", tmp_path / "two.flac"]
    for number, file in enumerate(files):
        soundfile.write(file, np.random.default_rng(number).normal(0, 0.1, 22050), 44100)
    return files


def test_speech_is_written_down(tmp_path: Path, clips: list[Path]) -> None:
    save_model(small_sound("prenorm"), tmp_path / "model")
    write_letters(tmp_path / "model", Letters(tuple("-|abcde"), space=1))
    plain = qkv("run", tmp_path / "model", *clips, "--device", "cpu")
    assert plain.code == 0, plain
    texts = plain.out.splitlines()
    assert len(texts) == 2
    answer = json.loads(qkv("run", tmp_path / "model", clips[0], "--json", "--device", "cpu").out)
    assert answer["text"] == texts[0]
    assert " ".join(word["text"] for word in answer["words"]) == texts[0]
    timed = [line.split("\t") for line in qkv("run", tmp_path / "model", *clips, "--times", "words").out.splitlines()]
    assert [word[3] for word in timed if word[0] == "1"] == texts[0].split()
    assert all(float(start) < float(end) <= 0.51 for _, start, end, _ in timed)
    assert qkv("run", tmp_path / "model", clips[0], "--beams", "4").code == 0


def test_sounds_are_named_and_become_vectors(tmp_path: Path, clips: list[Path]) -> None:
    SoundClassifier(small_ast(), BANK).save(tmp_path / "names")
    lines = [line.split("\t") for line in qkv("run", tmp_path / "names", *clips, "--device", "cpu").out.splitlines()]
    assert [label in LABELS for label, _ in lines] == [True, True]
    SoundEncoder(small_ast("embedding"), BANK).save(tmp_path / "vectors")
    like = qkv("run", tmp_path / "vectors", *clips, "--similar", clips[0], "--device", "cpu").out.splitlines()
    assert like[0] == f"1.0000\t{clips[0]}"
    SoundStateReader(small_sound("base", "states"), WaveFeatures()).save(tmp_path / "states")
    assert len(json.loads(qkv("run", tmp_path / "states", clips[0], "--device", "cpu").out)[0]) == 12


def test_faults_are_told_in_one_line(tmp_path: Path, clips: list[Path]) -> None:
    SoundClassifier(small_ast(), BANK).save(tmp_path / "model")
    (tmp_path / "cut.wav").write_bytes(clips[0].read_bytes()[:500])
    save_model(small_sound(), tmp_path / "letters")
    write_letters(tmp_path / "letters", Letters(tuple("-|abcde"), space=1))
    save_model(small_sound("base", "pretraining"), tmp_path / "pretraining")
    for model, arguments, told in [
        ("model", [tmp_path / "absent.wav"], "There is no sound file"),
        ("model", [tmp_path / "cut.wav"], "cut short"),
        ("model", [tmp_path / "model" / "config.json"], "no sound file"),
        ("model", [clips[0], "--times", "words"], "--times is for"),
        ("letters", [clips[0], "--times", "segments"], "the times of words"),
        ("pretraining", [clips[0]], "trained further"),
    ]:
        found = qkv("run", tmp_path / model, *arguments, "--device", "cpu")
        assert found.code == 2, found
        assert told in found.err
        assert len(found.err.strip().splitlines()) == 1


def test_states_are_written_one_by_one(tmp_path: Path, clips: list[Path]) -> None:
    reader = SoundStateReader(small_sound("base", "states"), WaveFeatures())
    reader.save(tmp_path / "states")
    expected = [states.tolist() for states in reader.run(clips)]
    plain = qkv("run", tmp_path / "states", *clips, "--device", "cpu").out.splitlines()
    assert [json.loads(line) for line in plain] == [[pytest.approx(row, abs=1e-4) for row in each] for each in expected]
    strange = tmp_path / 'a [] "name".wav'
    strange.write_bytes(clips[0].read_bytes())
    answer = json.loads(qkv("run", tmp_path / "states", strange, "--json", "--device", "cpu").out)
    assert answer == {"input": str(strange), "states": [pytest.approx(row, abs=1e-4) for row in expected[0]]}
