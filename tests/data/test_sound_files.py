"""Folders and tables of sounds."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from qkv.data.sound_features import WaveFeatures
from qkv.data.sound_files import read_sound_folder, read_sound_table, read_spoken_table, read_waves, sound_files
from qkv.errors import QkvError


def sound(file: Path, seconds: float = 0.1, rate: int = 16000) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(file, np.random.default_rng(0).uniform(-0.5, 0.5, int(seconds * rate)), rate)
    return file


def test_a_folder_is_a_class(tmp_path: Path) -> None:
    for name in ("dog/1.wav", "dog/more/2.flac", "cat/1.WAV", "dog/.hidden.wav"):
        sound(tmp_path / name)
    (tmp_path / "dog" / "notes.txt").write_text("no sound")
    found = read_sound_folder(tmp_path)
    assert (found.names, found.labels) == (("cat", "dog"), ["cat", "dog", "dog"])
    assert found.numbers().tolist() == [0, 1, 1]
    assert [file.name for file in found.files] == ["1.WAV", "1.wav", "2.flac"]
    assert len(found) == len(list(sound_files(tmp_path))) == 3
    assert read_sound_folder(tmp_path, ["bird", "dog", "cat"]).numbers().tolist() == [2, 1, 1]
    with pytest.raises(QkvError, match="named as none of the classes"):
        read_sound_folder(tmp_path, ["dog"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(QkvError, match="empty holds no sound"):
        read_sound_folder(tmp_path)


def test_folders_without_sounds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match="There is no folder"):
        read_sound_folder(tmp_path / "none")
    with pytest.raises(QkvError, match="it holds none"):
        read_sound_folder(tmp_path)


def test_tables_name_files_beside_them(tmp_path: Path) -> None:
    sound(tmp_path / "clips" / "a.wav")
    sound(tmp_path / "b.wav")
    table = tmp_path / "data.csv"
    table.write_text("file,label,text\nclips/a.wav,yes,hello there\nb.wav,no,good bye\nmissing.wav,no,gone\n")
    labelled = read_sound_table(table)
    assert (labelled.labels, labelled.names) == (["yes", "no"], ("no", "yes"))
    assert labelled.files == [tmp_path / "clips" / "a.wav", tmp_path / "b.wav"]
    assert "missing.wav" in str(labelled.problems[0])
    spoken = read_spoken_table(table)
    assert (len(spoken), spoken.texts) == (2, ["hello there", "good bye"])


def test_waves_come_at_the_rate_and_prepared(tmp_path: Path) -> None:
    files = [sound(tmp_path / "a.wav"), sound(tmp_path / "b.wav", 0.2, 8000)]
    plain = list(read_waves(files, 16000))
    assert [len(wave) for wave in plain] == [1600, 3200]
    prepared = list(read_waves(files, 16000, WaveFeatures()))
    torch.testing.assert_close(prepared[0], WaveFeatures()(plain[0][None]).values[0])
    with pytest.raises(QkvError, match=r"longer than 0\.15 seconds"):
        list(read_waves(files, 16000, most_seconds=0.15))
