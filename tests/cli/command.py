"""The `qkv` command, called in this process (quick) or as a process of its own (for signals)."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from qkv.cli.main import main

WORDS = {"cat": "K AE T", "act": "AE K T", "dog": "D AO G", "god": "G AA D", "tag": "T AE G", "cot": "K AA T"}
TINY = [
    "--size",
    "width=8,hidden=16,heads=2,layers=1",
    "--source-tokenizer",
    "characters",
    "--target-tokenizer",
    "symbols",
]


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The last line of standard error, and proof that a person is never shown a traceback."""
        assert "Traceback" not in self.err, self.err
        return self.err.rstrip("\n").rpartition("\n")[2]


def qkv(*arguments: str | Path, stdin: str | bytes = b"") -> Outcome:
    """One command in this process."""
    given = io.TextIOWrapper(io.BytesIO(stdin.encode() if isinstance(stdin, str) else stdin), encoding="utf-8")
    out, err = io.StringIO(), io.StringIO()
    with mock.patch.object(sys, "stdin", given), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return Outcome(code, out.getvalue(), err.getvalue())


def train(data: str | Path, out: Path, *more: str | Path, stdin: str | bytes = b"") -> Outcome:
    """A training of a tiny model for three steps, unless more is said."""
    budget = [] if "--steps" in more or "--minutes" in more else ["--steps", "3"]
    columns = ["--data", data, "--source", "word", "--target", "phonemes", "--hold-out", "0.3", "--device", "cpu"]
    return qkv("train", "text-to-text", *columns, *TINY, "--out", out, *budget, *more, stdin=stdin)


def write_words(file: Path, words: dict[str, str] = WORDS) -> Path:
    file.write_text("word\tphonemes\n" + "".join(f"{word}\t{sounds}\n" for word, sounds in words.items()), "utf-8")
    return file


@contextlib.contextmanager
def process(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """One command as a process of its own; it does not outlive the block."""
    started = subprocess.Popen(
        [sys.executable, "-m", "qkv", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()
