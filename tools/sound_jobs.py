"""Sounds of instruments, a note each."""

from __future__ import annotations

import io
import json
import re
import wave
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.fetching import FetchError, File, Job, Package

SECONDS = 3  # of each note that are kept: its attack and how it begins to fade
VERSIONS = {
    "bass-electric": "1.1.2", "cello": "1.1.0", "contrabass": "1.1.0", "flute": "1.1.0", "guitar-acoustic": "1.1.0",
    "guitar-electric": "1.1.0", "harp": "1.1.0", "piano": "1.1.0", "saxophone": "1.1.0", "trumpet": "1.1.0",
    "violin": "1.1.0", "xylophone": "1.1.1",
}  # fmt: skip
NAMED = re.compile(r"(?P<key>[A-G])(?P<sharp>s?)(?P<octave>\d)(?P<take> v\d)?")


def notes(packages: Sequence[Path]) -> Iterator[File]:
    """A package is an instrument and a file of it a note: `As3.wav`, or `As3 v2.wav` for a second take of it."""
    rows = []
    for label, package in zip(VERSIONS, packages, strict=True):
        for file in sorted((package / "package").glob("*.wav")):
            found = NAMED.fullmatch(file.stem)
            if found is None:
                raise FetchError(f"The package of the {label} holds {file.name}, which names no note.")
            name = f"{label}/{file.stem.replace(' ', '-')}.wav"
            note = found["key"] + ("#" if found["sharp"] else "") + found["octave"]
            rows.append({"file": name, "label": label, "note": note})
            yield name, [beginning(file)]
    yield "notes.jsonl", [json.dumps(row).encode() + b"\n" for row in rows]


def beginning(file: Path, seconds: int = SECONDS) -> bytes:
    """The first seconds of a WAV, sample for sample, as a WAV."""
    try:
        with wave.open(str(file), "rb") as whole:
            kind = (whole.getnchannels(), whole.getsampwidth(), whole.getframerate())
            samples = whole.readframes(seconds * whole.getframerate())
    except (wave.Error, EOFError) as error:
        raise FetchError(f"{file.name} is no WAV of plain samples: {error}.") from error
    stream = io.BytesIO()
    with wave.open(stream, "wb") as cut:
        cut.setnchannels(kind[0])
        cut.setsampwidth(kind[1])
        cut.setframerate(kind[2])
        cut.writeframes(samples)
    return stream.getvalue()


PACKAGES = tuple(Package("npm", f"tonejs-instrument-{name}-wav@{number}") for name, number in VERSIONS.items())
SOUND_JOBS = [Job("notes", PACKAGES, 142, notes)]
