"""Sound files → samples: any rate, any number of channels, whole or in windows.

Nothing a file says of itself is believed before it is read: not its length, not its rate. What is read is one block at
a time, so a file of many hours needs no more memory than a short one unless it is asked for whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import torch
from torch import Tensor

from qkv.data.resampling import Resampler, check_rate
from qkv.errors import QkvError

BLOCK = 2**18  # values read at once, of all channels together
MOST_SECONDS = 4 * 3600.0  # of a sound that is asked for whole
MOST_CHANNELS = 64
LOUDEST = 2.0**31  # full scale is 1; integers written as floats reach this


@dataclass(frozen=True, eq=False)
class Sound:
    """One channel. Samples [t] lie between -1 and 1, unless a file of floats goes beyond."""

    samples: Tensor
    rate: int

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate


@dataclass(frozen=True, eq=False)
class Window:
    """A stretch of a longer sound. `start` is the number of its first sample in the whole."""

    samples: Tensor  # [t]
    start: int
    last: bool  # whether the sound ends with it


def read_sound(file: Path | str, rate: int | None = None, *, most_seconds: float = MOST_SECONDS) -> Sound:
    """A whole file as one channel, the mean of its channels; at another rate where one is asked for."""
    with _open(Path(file)) as opened:
        rate = rate or opened.samplerate
        blocks, read = [], 0
        for block in _resampled(opened, Path(file), rate):
            blocks.append(block)
            read += len(block)
            if read > most_seconds * rate:
                raise QkvError(f"{file} is longer than {most_seconds:g} seconds: read it in windows.")
    return Sound(torch.cat(blocks), rate)


def sound_windows(file: Path | str, rate: int, size: int, overlap: int = 0) -> Iterator[Window]:
    """A file of any length in stretches of `size` samples at this rate, of which neighbours share `overlap`.

    The last one may be shorter. Only one window is in memory at a time.
    """
    with _open(Path(file)) as opened:
        yield from windows(_resampled(opened, Path(file), rate), size, overlap)


def windows(blocks: Iterable[Tensor], size: int, overlap: int = 0) -> Iterator[Window]:
    """Samples that come in blocks of any length [t], cut into windows."""
    if not 0 <= overlap < size:
        raise QkvError(f"Windows of {size} samples cannot share {overlap}: it must be from 0 to {size - 1}.")
    waiting: list[Tensor] = []
    held, start = 0, 0
    for block in blocks:
        waiting.append(block)
        held += len(block)
        while held > size:  # and not as many: whether a window is the last is known once more follows
            joined = torch.cat(waiting)
            yield Window(joined[:size].clone(), start, last=False)
            step = size - overlap
            waiting, held, start = [joined[step:].clone()], held - step, start + step
    if held:
        yield Window(torch.cat(waiting), start, last=True)


def _resampled(opened: Any, file: Path, rate: int) -> Iterator[Tensor]:
    """The mean of the channels, block by block, at this rate."""
    resampler = Resampler(opened.samplerate, rate)
    for block in _blocks(opened, file):
        yield resampler.push(block)
    yield resampler.finish()


def _blocks(opened: Any, file: Path) -> Iterator[Tensor]:
    """What is in the file, whatever its header says; a file that ends before its time and one of nothing are errors."""
    soundfile = _soundfile()
    said, read = opened.frames, 0
    while True:
        try:
            channels = opened.read(max(1, BLOCK // opened.channels), dtype="float32", always_2d=True)  # [t c]
        except soundfile.SoundFileError as error:
            raise QkvError(
                f"{file} cannot be read past {read / opened.samplerate:.2f} seconds: it is broken or was cut short."
            ) from error
        if not len(channels):
            break
        block = torch.from_numpy(channels)
        wrong = ~(block.abs() <= LOUDEST).all(1)  # what is no number is not below anything either
        if wrong.any():
            at = read + int(wrong.int().argmax())
            raise QkvError(
                f"{file} holds a sample at {at / opened.samplerate:.3f} seconds that is no sound (not a number, "
                "infinite, or far beyond full scale): repair the file."
            )
        read += len(block)
        yield block.mean(1)
    if read == 0:
        raise QkvError(f"{file} holds no sound: it has 0 samples.")
    # An MP3 only estimates its length, and a stream does not know it.
    if read < said < 2**62 and opened.format != "MP3":
        raise QkvError(
            f"{file} ends after {read / opened.samplerate:.2f} of {said / opened.samplerate:.2f} seconds: it was cut "
            "short."
        )


def _soundfile() -> ModuleType:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: the library is there, and what it loads is not
        raise QkvError('Reading sound needs the package soundfile: pip install "qkv[sound]".') from error
    module: ModuleType = soundfile
    return module


def _open(file: Path) -> Any:
    """The file as soundfile has it; what cannot be sound is told in one sentence."""
    soundfile = _soundfile()
    if file.is_dir():
        raise QkvError(f"{file} is a folder: name a sound file in it.")
    try:
        with file.open("rb") as stream:
            _check_whole_wave(file, stream)
        opened = soundfile.SoundFile(str(file))
    except FileNotFoundError as error:
        raise QkvError(f"There is no sound file {file}.") from error
    except OSError as error:
        raise QkvError(f"{file} cannot be read ({error.strerror or error}).") from error
    except (soundfile.SoundFileError, TypeError) as error:  # TypeError: samples alone, without a header
        raise QkvError(f"{file} is no sound file that can be read: give a WAV, FLAC, OGG or MP3.") from error
    try:
        check_rate(opened.samplerate, str(file))
        if not 1 <= opened.channels <= MOST_CHANNELS:
            raise QkvError(f"{file} has {opened.channels} channels; qkv reads 1 to {MOST_CHANNELS}.")
    except QkvError:
        opened.close()
        raise
    return opened


def _check_whole_wave(file: Path, stream: BinaryIO) -> None:
    """A WAV that holds less than it says was cut short, and its reader would say nothing of it."""
    size = file.stat().st_size
    head = stream.read(12)
    if size == 0:
        raise QkvError(f"{file} is empty: 0 bytes.")
    if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
        return
    place = 12
    while place + 8 <= size:
        stream.seek(place)
        name, length = struct.unpack("<4sI", stream.read(8))
        place += 8
        if name == b"data":
            streamed = length in (0, 0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000, 0xFFFFFFFF - 36)  # written without an end
            if place + length > size and not streamed:
                raise QkvError(
                    f"{file} holds {size - place:,} of the {length:,} bytes of sound that it says: it was cut short."
                )
            return
        place += length + length % 2
    raise QkvError(f"{file} ends before its sound begins: it was cut short.")
