"""Sounds with classes as rows: cut, prepared once, changed anew in every epoch."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from qkv.data.augment import Roll, WaveMixing
from qkv.data.batches import Batches
from qkv.data.classes import divided_rows
from qkv.data.labelled_sounds import LabelledSounds, measured_bank, read_labelled_sounds
from qkv.data.plan import PlannedBatch, RowCount
from qkv.data.sound_features import FilterBank, WaveFeatures
from qkv.data.sound_files import read_sound_folder
from qkv.errors import QkvError

NAMES = ("low", "high")


def sounds(*lengths: int) -> LabelledSounds:
    waves = [torch.randn(length, generator=torch.Generator().manual_seed(length)) for length in lengths]
    return LabelledSounds(waves, np.arange(len(lengths)) % 2, NAMES)


def whole(rows: LabelledSounds, filler: int = 0) -> PlannedBatch:
    return PlannedBatch(np.arange(len(rows)), int(rows.sizes[0].max()), 1, filler)


def test_a_batch_is_padded_and_its_filler_has_no_class() -> None:
    rows = sounds(500, 700, 600)
    batch = rows.batch(whole(rows, filler=1))
    assert batch.waves.shape == (4, 700)
    assert batch.lengths.tolist() == [500, 700, 600, 500]
    assert batch.labels.tolist() == [0, 1, 0, -1]
    assert torch.equal(batch.waves[2, :600], rows.waves[2])
    assert not batch.waves[2, 600:].any()


def test_another_stretch_of_a_long_sound_is_taken_in_every_epoch() -> None:
    rows = LabelledSounds([torch.arange(50.0), torch.arange(8.0)], np.array([0, 1]), NAMES, window=10)
    assert rows.sizes[0].tolist() == [10, 8]
    starts = set()
    for epoch in range(60):
        batch = rows.anew(1)(epoch).batch(whole(rows))
        assert torch.equal(batch.waves[0], torch.arange(10.0) + batch.waves[0, 0])
        starts.add(int(batch.waves[0, 0]))
        assert batch.waves[1].tolist() == [*range(8), 0, 0]
    assert min(starts) < 4
    assert max(starts) > 36
    again = rows.anew(1)(59).batch(whole(rows))
    assert torch.equal(again.waves, batch.waves)


def test_a_stretch_of_a_picture_is_the_picture_of_a_stretch() -> None:
    """So pictures can be made once and cut later."""
    bank = FilterBank(bands=16, frames=12)
    rows = sounds(16000, 900)
    made = rows.made(bank)
    assert [wave.shape for wave in made.waves] == [(1, 16, 98), (1, 16, 12)]
    stretch = rows.waves[0][20 * 160 : 20 * 160 + bank.samples]
    torch.testing.assert_close(made.waves[0][..., 20:32], bank(stretch[None]).values[0])
    torch.testing.assert_close(made.waves[1], bank(rows.waves[1][None]).values[0])


def test_long_sounds_are_divided_as_they_are_heard() -> None:
    rows = LabelledSounds([torch.arange(25.0), torch.arange(13.0), torch.arange(3.0)], np.array([0, 1, 1]), NAMES)
    parts = rows.divided(10, shortest=5)
    assert [len(part) for part in parts.waves] == [10, 10, 5, 10, 3]
    assert parts.labels.tolist() == [0, 0, 0, 1, 1]


def test_mixing_then_preparing_then_changing() -> None:
    rows = sounds(*[4000] * 10)
    bank = FilterBank(bands=16, frames=20)
    batch = rows.anew(0, Roll(3), WaveMixing(probability=1.0))(0).batch(whole(rows))
    found = batch.prepared(bank)
    draw = np.random.default_rng(batch.seed)
    mixed = WaveMixing(probability=1.0)(batch.waves, draw, 10)
    torch.testing.assert_close(found.values, Roll(3)(bank(mixed.images, batch.lengths).values, draw))
    assert torch.equal(found.others, batch.labels[mixed.partners])
    assert torch.equal(found.kept, mixed.kept)
    again = batch.prepared(bank)
    assert torch.equal(found.values, again.values)


def test_a_mixed_sound_is_as_long_as_the_longer_of_the_two() -> None:
    rows = sounds(400, 4000)
    batch = rows.anew(0, None, WaveMixing(probability=1.0))(0).batch(whole(rows))
    found = batch.prepared(WaveFeatures())
    mixed = WaveMixing(probability=1.0)(batch.waves, np.random.default_rng(batch.seed))
    expected = [max(400 if row == 0 else 4000, [400, 4000][partner]) for row, partner in enumerate(mixed.partners)]
    assert found.lengths.tolist() == expected


def test_pictures_are_normalised_by_their_own_mean_and_deviation() -> None:
    rows = sounds(8000, 9000, 4000)
    bank = measured_bank(rows, bands=16, frames=10)
    values = torch.cat([wave.flatten() for wave in rows.made(bank).waves])
    assert float(values.mean()) == pytest.approx(0, abs=1e-4)
    assert float(values.std()) == pytest.approx(0.5, abs=1e-3)
    with pytest.raises(QkvError, match="silent"):
        measured_bank(LabelledSounds([torch.zeros(800)], np.array([0]), NAMES), bands=16, frames=10)


def test_all_rows_come_once_an_epoch_and_some_are_held_out() -> None:
    rows = sounds(*range(300, 320))
    batches = Batches(rows.anew(0), RowCount(6))
    seen = torch.cat([batch.lengths[: batch.labelled] for batch in batches])
    assert sorted(seen.tolist()) == list(range(300, 320))
    kept, held = divided_rows(rows, 0.2)
    assert (len(kept), len(held), np.bincount(held.labels).tolist()) == (16, 4, [2, 2])
    assert all(int(label) == len(wave) % 2 for wave, label in zip(held.waves, held.labels, strict=True))


def test_files_are_read_and_bad_ones_told(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).mkdir()
        soundfile.write(tmp_path / name / "one.wav", np.zeros(4410), 44100)
    (tmp_path / "low" / "two.wav").write_bytes(b"nothing")
    rows, problems = read_labelled_sounds(read_sound_folder(tmp_path), 16000)
    assert [len(wave) for wave in rows.waves] == [1600, 1600]
    assert [rows.names[label] for label in rows.labels] == ["high", "low"]
    assert "two.wav" in str(problems[0])
    (tmp_path / "low" / "one.wav").unlink()
    (tmp_path / "high" / "one.wav").write_bytes(b"")
    with pytest.raises(QkvError, match="None of the 2 sounds"):
        read_labelled_sounds(read_sound_folder(tmp_path), 16000)


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(QkvError, match="one label"):
        LabelledSounds([torch.zeros(5)], np.array([0, 1]), NAMES)
    with pytest.raises(QkvError, match="from 0 to 1"):
        LabelledSounds([torch.zeros(5)], np.array([2]), NAMES)
