"""Notes out of packages become labelled WAV files."""

import io
import json
import wave
from pathlib import Path

import numpy as np
import pytest

from tools import sound_jobs
from tools.fetching import FetchError


def a_note(file: Path, samples: np.ndarray, rate: int = 8000) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(file), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(samples.astype("<i2").tobytes())


@pytest.fixture
def packages(tmp_path: Path) -> list[Path]:
    for number, name in enumerate(sound_jobs.VERSIONS):
        a_note(tmp_path / name / "package" / "C4.wav", np.arange(100) + number)
    return [tmp_path / name for name in sound_jobs.VERSIONS]


def test_a_note_is_named_and_cut_sample_for_sample(packages: list[Path]) -> None:
    cello = packages[list(sound_jobs.VERSIONS).index("cello")] / "package"
    long = np.random.default_rng(0).integers(-3000, 3000, 40_000)
    a_note(cello / "Fs2 v2.wav", long)
    made = {name: b"".join(content) for name, content in sound_jobs.notes(packages)}
    rows = [json.loads(line) for line in made["notes.jsonl"].splitlines()]
    assert len(rows) == 13
    assert {"file": "cello/Fs2-v2.wav", "label": "cello", "note": "F#2"} in rows
    assert all(row["file"] in made for row in rows)
    with wave.open(io.BytesIO(made["cello/Fs2-v2.wav"])) as found:
        assert found.getframerate() == 8000
        samples = np.frombuffer(found.readframes(10**6), "<i2")
    assert np.array_equal(samples, long[: 3 * 8000])


def test_what_is_no_note_is_told(packages: list[Path]) -> None:
    (packages[0] / "package" / "H9.wav").write_bytes(b"")
    with pytest.raises(FetchError, match="names no note"):
        list(sound_jobs.notes(packages))
    (packages[0] / "package" / "H9.wav").rename(packages[0] / "package" / "A1.wav")
    with pytest.raises(FetchError, match=r"A1\.wav is no WAV"):
        list(sound_jobs.notes(packages))
