"""Sound files of every kind, and files that are none or are broken."""

import struct
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from qkv.data import sound
from qkv.data.sound import Window, read_sound, sound_windows, windows
from qkv.errors import QkvError


def tone(seconds: float = 0.3, rate: int = 16000, frequency: float = 440.0) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * frequency * np.arange(int(seconds * rate)) / rate)


def write(file: Path, samples: np.ndarray, rate: int = 16000, subtype: str | None = None) -> Path:
    soundfile.write(file, samples, rate, subtype=subtype)
    return file


@pytest.mark.parametrize(
    ("name", "subtype", "error"),
    [
        ("a.wav", "PCM_U8", 1 / 128),
        ("a.wav", "PCM_16", 1 / 32768),
        ("a.wav", "PCM_24", 2**-23),
        ("a.wav", "PCM_32", 1e-7),
        ("a.wav", "FLOAT", 1e-7),
        ("a.wav", "DOUBLE", 1e-7),
        ("a.wav", "ULAW", 0.02),
        ("a.flac", "PCM_16", 1 / 32768),
        ("a.flac", "PCM_24", 2**-23),
        ("a.aiff", "PCM_16", 1 / 32768),
        ("a.ogg", "VORBIS", 0.05),
        ("a.mp3", None, 0.05),
    ],
)
def test_kinds_of_files_give_the_samples_that_were_written(
    tmp_path: Path, name: str, subtype: str | None, error: float
) -> None:
    samples = tone()
    found = read_sound(write(tmp_path / name, samples, subtype=subtype))
    assert found.rate == 16000
    if name.endswith("mp3"):  # which adds silence at both ends
        assert len(samples) <= len(found.samples) < len(samples) + 4000
        assert abs(found.samples.abs().max() - 0.5) < error
        return
    assert found.samples.shape == samples.shape
    assert found.seconds == pytest.approx(0.3)
    torch.testing.assert_close(found.samples, torch.from_numpy(samples).float(), atol=error, rtol=0)


def test_one_channel_is_the_mean_of_all(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).uniform(-1, 1, (1000, 5))
    found = read_sound(write(tmp_path / "a.wav", samples, subtype="FLOAT"))
    torch.testing.assert_close(found.samples, torch.from_numpy(samples.mean(1)).float())


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000, 96000, 192000])
def test_another_rate_is_the_same_sound(tmp_path: Path, rate: int) -> None:
    found = read_sound(write(tmp_path / "a.wav", tone(0.5, rate), rate, "FLOAT"), 16000)
    expected = torch.from_numpy(tone(0.5)).float()
    assert found.rate == 16000
    assert found.samples.shape == expected.shape
    torch.testing.assert_close(found.samples[2000:6000], expected[2000:6000], atol=1e-4, rtol=0)


def test_one_sample_is_a_sound(tmp_path: Path) -> None:
    file = write(tmp_path / "a.wav", np.array([0.25]), subtype="FLOAT")
    assert read_sound(file).samples.tolist() == [0.25]
    assert len(read_sound(file, 8000).samples) == 1
    assert len(read_sound(file, 48000).samples) == 3


@pytest.mark.parametrize(("size", "overlap"), [(1000, 0), (1000, 400), (999, 900), (4800, 0), (5000, 10), (2400, 0)])
@pytest.mark.parametrize("rate", [16000, 44100])
def test_windows_cover_the_sound_and_share_what_they_are_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, overlap: int, rate: int
) -> None:
    monkeypatch.setattr(sound, "BLOCK", 700)
    file = write(tmp_path / "a.wav", np.random.default_rng(0).uniform(-1, 1, int(0.3 * rate)), rate, "FLOAT")
    whole = read_sound(file, 16000).samples
    found = list(sound_windows(file, 16000, size, overlap))
    assert [window.last for window in found] == [False] * (len(found) - 1) + [True]
    assert [window.start for window in found] == [n * (size - overlap) for n in range(len(found))]
    assert all(len(window.samples) == size for window in found[:-1])
    for window in found:
        end = window.start + len(window.samples)
        torch.testing.assert_close(window.samples, whole[window.start : end], atol=1e-6, rtol=1e-5)
    assert end == len(whole)
    assert len(found) == 1 or len(found[-1].samples) > overlap  # the last brings something new


def test_windows_cannot_share_all_they_have() -> None:
    for overlap in (-1, 10, 11):
        with pytest.raises(QkvError, match="from 0 to 9"):
            list(windows([torch.zeros(5)], 10, overlap))
    assert list(windows([], 10)) == []
    assert isinstance(next(windows([torch.zeros(3)], 10)), Window)


def test_a_long_file_runs_in_the_memory_of_a_short_one(tmp_path: Path) -> None:
    """Four minutes of 48 kHz stereo, 46 MB of samples, in windows of 5 seconds."""
    file = tmp_path / "long.flac"
    with soundfile.SoundFile(file, "w", 48000, 2, "PCM_16") as opened:
        for _ in range(4):
            opened.write(np.zeros((60 * 48000, 2), dtype=np.int16))
    tracemalloc.start()
    read = sum(len(window.samples) for window in sound_windows(file, 16000, 80000))
    _, most = tracemalloc.get_traced_memory()  # numpy's, which soundfile fills
    tracemalloc.stop()
    assert read == 240 * 16000
    assert most < 10_000_000
    with pytest.raises(QkvError, match="longer than 60 seconds: read it in windows"):
        read_sound(file, 16000, most_seconds=60)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_samples_that_are_no_sound_are_refused_with_their_time(tmp_path: Path, bad: float) -> None:
    samples = tone()
    samples[1600] = bad
    file = write(tmp_path / "a.wav", samples, subtype="DOUBLE" if bad == 1e30 else "FLOAT")
    with pytest.raises(QkvError, match=r"0\.100 seconds that is no sound"):
        read_sound(file)


def refused(file: Path, match: str) -> None:
    for read in (read_sound, lambda file: list(sound_windows(file, 16000, 1000))):
        with pytest.raises(QkvError, match=match):
            read(file)


def test_a_file_without_samples_is_refused(tmp_path: Path) -> None:
    refused(write(tmp_path / "a.wav", np.zeros(0)), "0 samples")
    refused(write(tmp_path / "a.flac", np.zeros(0)), "0 bytes")


def test_what_is_no_sound_file_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none.wav", "no sound file")
    refused(tmp_path, "is a folder")
    for name, content, match in [
        ("empty.wav", b"", "0 bytes"),
        ("text.wav", b"this is a text, not a sound", "no sound file that can be read"),
        ("samples.raw", bytes(1000), "no sound file that can be read"),
        ("head.wav", b"RIFF\x24\x00\x00\x00WAVE", "cut short|can be read"),
        ("random.flac", b"fLaC" + bytes(range(256)) * 4, "can be read|broken"),
        ("random.ogg", b"OggS" + bytes(range(256)) * 4, "can be read|broken"),
    ]:
        (tmp_path / name).write_bytes(content)
        refused(tmp_path / name, match)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg"])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_a_file_that_was_cut_short_is_refused(tmp_path: Path, name: str, share: float) -> None:
    whole = write(tmp_path / name, np.random.default_rng(0).uniform(-0.5, 0.5, 32000)).read_bytes()
    cut = tmp_path / f"cut-{name}"
    cut.write_bytes(whole[: int(share * len(whole))])
    if name == "a.ogg" and share == 0.9:  # a stream has no length of its own: it ends where it ends
        assert 0 < len(read_sound(cut).samples) < 32000
    else:
        refused(cut, "cut short|can be read|0 samples")


def wave(rate: int, channels: int, bits: int, said: int, content: bytes) -> bytes:
    """A WAV whose header says what it is told to say."""
    frame = channels * bits // 8
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, channels, rate, rate * frame % 2**32, frame % 2**16, bits)
    body = head + struct.pack("<4sI", b"data", said) + content
    return b"RIFF" + struct.pack("<I", (4 + len(body)) % 2**32) + b"WAVE" + body


@pytest.mark.parametrize(
    ("rate", "channels", "bits", "said", "match"),
    [
        (16000, 1, 16, 2_000_000_000, "cut short"),
        (16000, 1, 16, 4000, "cut short"),
        (1, 1, 16, 2000, "1 samples a second"),
        (0, 1, 16, 2000, "samples a second|can be read"),
        (2_000_000_000, 1, 16, 2000, "samples a second"),
        (16000, 0, 16, 2000, "channels|can be read"),
        (16000, 1000, 16, 2000, "channels|can be read"),
    ],
)
def test_headers_that_lie_are_found_out(
    tmp_path: Path, rate: int, channels: int, bits: int, said: int, match: str
) -> None:
    file = tmp_path / "a.wav"
    file.write_bytes(wave(rate, channels, bits, said, bytes(2000)))
    refused(file, match)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg", "a.mp3", "a.aiff"])
def test_files_with_wrong_bytes_are_read_or_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    whole = write(tmp_path / name, np.random.default_rng(0).uniform(-0.5, 0.5, 4000)).read_bytes()
    random = np.random.default_rng(1)
    outcomes = set()
    for number in range(60):
        broken = bytearray(whole)
        reach = len(broken) if number % 2 else 64  # every other time in the header
        for place in random.integers(0, min(reach, len(broken)), 1 + number % 4):
            broken[place] = random.integers(0, 256)
        file = tmp_path / f"{number}-{name}"
        file.write_bytes(bytes(broken))
        try:
            samples = read_sound(file, 16000, most_seconds=600).samples
        except QkvError as error:
            outcomes.add("refused" if "\n" not in str(error) else str(error))
        else:
            outcomes.add("read" if samples.isfinite().all() else "no numbers")
    assert outcomes <= {"read", "refused"}


def test_a_stream_that_did_not_know_its_length_is_read_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "a.wav"
    file.write_bytes(wave(16000, 1, 16, 0xFFFFFFFF, bytes(2000)))
    assert len(read_sound(file).samples) == 1000


def test_without_the_package_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "a.wav", tone())
    monkeypatch.setitem(sys.modules, "soundfile", None)
    refused(file, r'pip install "qkv\[sound\]"')
