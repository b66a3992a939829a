"""Speech with the words that are said in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.fetching import FetchError, File, Job, Package, pieces

SAID = re.compile(r"<s> (.*) </s> \((.*)\)")


def librivox(packages: Sequence[Path]) -> Iterator[File]:
    """Five sentences of a novel, read aloud."""
    folder = packages[0] / "usr/share/pocketsphinx/test/data/librivox"
    rows = []
    for line in (folder / "transcription").read_text(encoding="utf-8").splitlines():
        found = SAID.fullmatch(line.strip())
        if found is None:
            raise FetchError(f"The package's transcription has a line that cannot be read: {line!r}.")
        rows.append({"file": f"{found[2]}.wav", "text": found[1]})
        yield f"{found[2]}.wav", pieces(folder / f"{found[2]}.wav")
    yield "speech.jsonl", [json.dumps(row).encode() + b"\n" for row in rows]


SPEECH_JOBS = [Job("librivox", (Package("debian", "pocketsphinx-testdata"),), 2, librivox)]
