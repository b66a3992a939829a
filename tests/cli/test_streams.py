"""Whatever streams and encodings a command is started with: what it tells comes out, and what it writes can be read."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.cli.streams import ready_streams
from qkv.files import read_json
from tests.cli.command import TINY, WORDS, qkv, write_words

SAID = "süß → 犬"
# One process for several commands, because starting torch takes seconds.
COMMANDS = """
import json, sys
from qkv.cli.main import main
for line in json.loads(sys.argv[1]):
    sys.argv = ["qkv", *line]
    if code := main():
        sys.exit(code)
"""
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # no letters but those of English


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


def told(encoding: str, monkeypatch: pytest.MonkeyPatch, where: io.BytesIO, errors: str = "strict") -> bytes:
    with monkeypatch.context() as only_here:
        only_here.setattr(sys, "stdout", io.TextIOWrapper(where, encoding=encoding, errors=errors, newline="\n"))
        only_here.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
        ready_streams(answers=True)
        print(SAID, flush=True)
        return where.getvalue()


def test_a_file_or_a_pipe_gets_utf_8_whatever_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    for encoding in ("cp1252", "latin-1", "ascii", "utf-8"):
        assert told(encoding, monkeypatch, io.BytesIO()) == f"{SAID}\n".encode()


def test_a_terminal_or_a_named_encoding_gets_escapes_for_letters_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    assert told("cp1252", monkeypatch, Terminal()) == b"s\xfc\xdf \\u2192 \\u72ac\n"
    assert told("utf-8", monkeypatch, Terminal()) == f"{SAID}\n".encode()
    monkeypatch.setenv("PYTHONIOENCODING", "cp1252")
    assert told("cp1252", monkeypatch, io.BytesIO()) == b"s\xfc\xdf \\u2192 \\u72ac\n"
    monkeypatch.setenv("PYTHONIOENCODING", "cp1252:replace")  # as asked for
    assert told("cp1252", monkeypatch, io.BytesIO(), "replace") == b"s\xfc\xdf ? ?\n"


def run_commands(
    lines: list[list[str]], environment: dict[str, str], closed: str, folder: Path
) -> "subprocess.CompletedProcess[bytes]":
    shell = f'exec "$0" -c "$1" "$2" {closed}'
    return subprocess.run(
        ["bash", "-c", shell, sys.executable, COMMANDS, json.dumps(lines)],
        cwd=folder,
        capture_output=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **environment},
    )


def test_a_training_by_a_locale_without_letters_is_told_and_can_be_read_and_repeated(tmp_path: Path) -> None:
    """Its standard error is closed, so that the next files that are opened could get its number."""
    data = write_words(tmp_path / "wörter.tsv", {**WORDS, "süß": "Z → S"})
    escaped = os.fsencode(data.name).decode("ascii", "surrogateescape")  # as Python reads arguments there
    columns = ["--data", escaped, "--source", "word", "--target", "phonemes", "--hold-out", "0.3", "--device", "cpu"]
    lines = [
        ["train", "text-to-text", *columns, *TINY, "--out", "\udcc3\udcbc", *more]
        for more in (["--steps", "2"], ["--steps", "3", "--resume"])
    ]
    done = run_commands(lines, ASCII, "2>&-", tmp_path)
    assert done.returncode == 0, done.stdout
    out = done.stdout.decode("utf-8")
    assert "qkv run 'ü' " in out
    assert "→" in out
    described = read_json(tmp_path / "ü" / "run.json")
    assert described["sessions"][0]["command"][-3:] == ["ü", "--steps", "2"]
    assert "--config 'ü/train.toml'" in described["sessions"][0]["repeat"].replace(os.sep, "/")
    for record in (tmp_path / "ü" / "metrics.jsonl").read_bytes().splitlines():
        json.loads(record)
    shown = qkv("runs", tmp_path)
    assert (shown.code, shown.err) == (0, "")
    assert "wörter.tsv" in shown.out
    (tmp_path / "ü").rename(tmp_path / "v")
    again = ["--config", str(tmp_path / "v" / "train.toml"), "--data", str(data), "--out", str(tmp_path / "w")]
    assert qkv("train", "text-to-text", *again).code == 0


def test_an_answer_comes_out_where_input_is_closed_and_the_encoding_lacks_letters(model: Path, tmp_path: Path) -> None:
    done = run_commands(
        [["run", str(model), "cat→", "--json"], ["run", str(model), "cät"], ["run", str(model)]],
        {"PYTHONIOENCODING": "cp1252"},
        "<&-",
        tmp_path,
    )
    assert done.stdout.startswith(b'{"input": "cat\\u2192"')
    assert done.stdout.count(b"\n") == 2
    assert done.returncode == 2
    assert done.stderr.decode() == f"qkv: There is no input: standard input is empty.{os.linesep}"


@pytest.mark.parametrize("verb", [["run", "nothing", "text"], ["runs"], ["models", "rnn"]])
def test_a_closed_standard_output_is_refused_where_it_is_all_there_would_be(verb: list[str], tmp_path: Path) -> None:
    done = run_commands([verb], {}, ">&-", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(b"qkv: Standard output is closed: ")
    assert done.stderr.count(b"\n") == 1


def test_a_name_that_no_file_can_have_here_is_one_sentence(model: Path) -> None:
    outcome = qkv("run", model, "--input", "half\ud83d")
    assert outcome.code == 2
    assert outcome.complaint.startswith("qkv: 'half\\ud83d' cannot be written in utf-8: ")
