"""Sounds in memory: as they were read, whoever read them; joined into rows of which nothing is lost."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from qkv.data.sound_features import WaveFeatures
from qkv.data.sound_files import SpokenFiles, read_waves
from qkv.data.stored_sounds import JoinedSounds, stored_speech, stored_waves
from qkv.errors import QkvError

FEATURES = WaveFeatures(rate=4000)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    random = np.random.default_rng(0)
    found = []
    for number in range(5):
        found.append(tmp_path / f"{number}.wav")
        soundfile.write(found[-1], random.uniform(-0.5, 0.5, 900 + 100 * number), 8000)
    return found


def test_what_is_stored_is_what_was_read(files: list[Path]) -> None:
    stored = stored_waves(files, FEATURES)
    assert [wave.dtype for wave in stored] == [torch.float16] * 5
    for wave, read in zip(stored, read_waves(files, 4000, FEATURES), strict=True):
        assert torch.equal(wave, read.half())
    spoken = stored_speech(SpokenFiles(files, list("abcde")), FEATURES)
    assert len(spoken) == 5
    assert torch.equal(spoken.waves[4], stored[4])


@pytest.mark.slow  # two processes import torch
def test_several_processes_read_the_same_in_the_same_order(files: list[Path]) -> None:
    many = files * 20
    alone, together = stored_waves(many, FEATURES), stored_waves(many, FEATURES, processes=2)
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))
    (files[0].parent / "bad.wav").write_bytes(b"noise")
    with pytest.raises(QkvError, match=r"bad\.wav"):
        stored_waves([*many, files[0].parent / "bad.wav"], FEATURES, processes=2)


def test_rows_hold_all_sounds_of_a_group_and_no_others() -> None:
    waves = [torch.full((length,), float(number)) for number, length in enumerate([5, 3, 4, 2, 6, 1])]
    joined = JoinedSounds(waves, 4, ["a", "b", "a", "b", "a", "b"])
    for epoch in range(3):
        rows = joined(epoch)
        assert [len(row) for row in rows] == [4, 4, 4, 3, 4, 2]  # 15 of a, 6 of b
        found = torch.cat(rows)
        assert torch.equal(found.sort().values, torch.cat(waves).sort().values)
        assert {int(each) % 2 for row in rows[:4] for each in row} == {0}
        assert {int(each) % 2 for row in rows[4:] for each in row} == {1}
    assert any(not torch.equal(torch.cat(joined(0)), torch.cat(joined(epoch))) for epoch in (1, 2))
    assert torch.equal(torch.cat(joined(1)), torch.cat(JoinedSounds(waves, 4, joined.groups)(1)))
    assert [len(row) for row in JoinedSounds(waves, 4, joined.groups, least=3)(0)] == [4, 4, 4, 3, 4]
    assert [len(row) for row in JoinedSounds(waves, 8)(0)] == [8, 8, 5]


def test_what_cannot_be_joined_is_told() -> None:
    with pytest.raises(QkvError, match="2 sounds and 1 names"):
        JoinedSounds([torch.zeros(3)] * 2, 4, ["a"])
    with pytest.raises(QkvError, match="too little sound"):
        JoinedSounds([torch.zeros(3)] * 2, 40, ["a", "b"], least=4)
    with pytest.raises(QkvError, match="cannot have 5 at least"):
        JoinedSounds([torch.zeros(3)], 4, least=5)
