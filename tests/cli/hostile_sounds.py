"""Sound files as strangers send them: odd ones beside the same sound plainly told, and broken ones."""

import io
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile

RATE = 16_000


def voice(seconds: float = 0.5, rate: int = RATE, channels: int = 1) -> np.ndarray:
    """Tones that rise and fall, in steps of 8 bits so that every format can hold them. [t] or [t c]"""
    time = np.arange(int(seconds * rate)) / rate
    tones = 0.3 * np.sin(2 * np.pi * 300 * time) + 0.2 * np.sin(2 * np.pi * 1100 * time) * np.sin(9 * time)
    samples = np.round(tones * 128) / 128
    return samples if channels == 1 else np.stack([samples] * channels, 1)


def content(samples: np.ndarray, rate: int = RATE, format: str = "WAV", subtype: str | None = None) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, samples, rate, format=format, subtype=subtype)
    return stream.getvalue()


def wave(samples: bytes, *, said: int | None = None, rate: int = RATE, channels: int = 1, bits: int = 16) -> bytes:
    """A WAV of these bytes, whose header says what it is told to say."""
    frame = channels * bits // 8
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, channels, rate, rate * frame % 2**32, frame % 2**16, bits)
    body = head + struct.pack("<4sI", b"data", len(samples) if said is None else said) + samples
    return b"RIFF" + struct.pack("<I", (4 + len(body)) % 2**32) + b"WAVE" + body


def with_bad(value: float, subtype: str) -> bytes:
    samples = voice()
    samples[1600] = value
    return content(samples, subtype=subtype)


def five_channels() -> bytes:
    """Five microphones of which one hears: the mean is a fifth."""
    samples = np.zeros((RATE // 2, 5))
    samples[:, 2] = voice()
    return content(samples, subtype="FLOAT")


def integers(samples: np.ndarray) -> bytes:
    return (samples * 32768).astype("<i2").tobytes()


# A name of the file, its content, the plain sound at the model's rate, and how far an answer may be from that to it.
READ: dict[str, tuple[str, Callable[[], bytes], Callable[[], np.ndarray], float]] = {
    "8 bits": ("8bit.wav", lambda: content(voice(), subtype="PCM_U8"), voice, 1e-5),
    "float64": ("double.wav", lambda: content(voice(), subtype="DOUBLE"), voice, 1e-5),
    "192 kHz": ("192.wav", lambda: content(voice(rate=192_000), 192_000, subtype="FLOAT"), voice, 0.05),
    "192 kHz, 24 bits": ("192.flac", lambda: content(voice(rate=192_000), 192_000, "FLAC", "PCM_24"), voice, 0.05),
    "stereo": ("two.wav", lambda: content(voice(channels=2)), voice, 1e-5),
    "5 channels": ("five.wav", five_channels, lambda: voice() / 5, 1e-5),
    "another format than its name says": ("name.mp3", lambda: content(voice(), format="FLAC"), voice, 1e-5),
    "a header that says less": ("less.wav", lambda: wave(integers(voice()), said=8000), lambda: voice()[:4000], 1e-5),
    "a stream that knew no length": ("stream.wav", lambda: wave(integers(voice()), said=2**32 - 1), voice, 1e-5),
    "silence": ("silence.wav", lambda: content(np.zeros(8000)), lambda: np.zeros(8000), 1e-5),
    "one sample": ("short.wav", lambda: content(np.array([0.5])), lambda: np.array([0.5]), 1e-5),
    "louder than full scale": ("loud.wav", lambda: content(4 * voice(), subtype="FLOAT"), lambda: 4 * voice(), 1e-5),
}  # fmt: skip

# A name of the file, its content (None: a folder), and what is told of it.
REFUSED: dict[str, tuple[str, Callable[[], bytes | None], str]] = {
    "0 seconds": ("none.wav", lambda: content(np.zeros(0)), "holds no sound: it has 0 samples"),
    "0 seconds, FLAC": ("none.flac", lambda: content(np.zeros(0), format="FLAC"), "0 "),
    "a sample that is no number": ("nan.wav", lambda: with_bad(np.nan, "FLOAT"), "at 0.100 seconds that is no sound"),
    "float64 with infinities": ("inf.wav", lambda: with_bad(np.inf, "DOUBLE"), "at 0.100 seconds that is no sound"),
    "float64 below all": ("low.wav", lambda: with_bad(-np.inf, "DOUBLE"), "at 0.100 seconds that is no sound"),
    "float64 beyond float32": ("far.wav", lambda: with_bad(1e300, "DOUBLE"), "at 0.100 seconds that is no sound"),
    "a FLAC cut off in the middle": ("cut.flac", lambda: half(content(noise(), format="FLAC")), "cut short"),
    "an Ogg cut off in its head": ("cut.ogg", lambda: content(voice(), format="OGG")[:60], "no sound file"),
    "a WAV cut off in the middle": ("cut.wav", lambda: half(content(voice())), "it was cut short"),
    "a header that says more": ("more.wav", lambda: wave(integers(voice()), said=2 * RATE), "it was cut short"),
    "a header that says hours": ("hours.wav", lambda: wave(integers(voice()), said=4_000_000_000), "it was cut short"),
    "a rate of 0": ("rate.wav", lambda: wave(integers(voice()), rate=0), "rate.wav"),
    "a rate of billions": ("fast.wav", lambda: wave(integers(voice()), rate=2_000_000_000), "samples a second"),
    "60,000 channels": ("many.wav", lambda: wave(bytes(240_000), channels=60_000), "many.wav"),
    "a text": ("text.wav", lambda: b"This is no sound.\n" * 99, "no sound file that can be read"),
    "a picture": ("photo.wav", lambda: b"\x89PNG\r\n\x1a\n" + bytes(999), "no sound file that can be read"),
    "an empty file": ("empty.wav", lambda: b"", "is empty: 0 bytes"),
    "a folder": ("folder.wav", lambda: None, "is a folder"),
}  # fmt: skip


def noise() -> np.ndarray:
    """What FLAC cannot make small."""
    return np.random.default_rng(0).uniform(-0.5, 0.5, 4 * RATE)


def half(whole: bytes) -> bytes:
    return whole[: len(whole) // 2]


def place(folder: Path, name: str, written: bytes | None) -> Path:
    file = folder / name
    if written is None:
        file.mkdir()
    else:
        file.write_bytes(written)
    return file
