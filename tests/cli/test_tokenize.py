"""`qkv tokenize`: shards are made, kept, gone on with, and stopped as documented."""

import json
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from qkv.data.token_folder import open_tokens
from qkv.data.tokenizer import TextTokenizer
from tests.cli.command import process, qkv
from tests.data.corpus_files import TEXTS, jsonl

PATIENCE = 120  # seconds after which a process that does not do what it should is given up


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    file = tmp_path / "model" / "tokenizer.json"
    file.parent.mkdir()
    TextTokenizer.train("bpe", TEXTS, vocabulary=300).save(file)
    return file


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.startswith(".")}


def test_a_corpus_is_tokenised_and_gone_on_with(tmp_path: Path, tokenizer: Path) -> None:
    data = jsonl(tmp_path, TEXTS)
    with data.open("a") as stream:
        stream.write("{broken\n" * 6)
    command = ("tokenize", "--data", data, "--out", tmp_path / "tokens", "--shard-size", "1KB", "--workers", "1")
    outcome = qkv(*command, "--tokenizer", tokenizer)
    assert outcome.code == 0, outcome
    assert outcome.out.startswith(f"{len(TEXTS)} documents of ")
    assert "Left out: 6 bad rows in all; the first 5 are shown." in outcome.err
    assert "shards  " in outcome.err
    made = contents(tmp_path / "tokens")
    shards = open_tokens(tmp_path / "tokens")
    assert sum(len(shards.documents(number)) for number in range(len(shards))) == len(TEXTS)

    shards.file(2).unlink()
    shards.file(1).write_bytes(shards.file(1).read_bytes()[:-1])
    again = qkv(*command, "--tokenizer", tokenizer.parent)  # a model folder has a tokenizer too
    assert again.code == 0, again
    assert "is cut short" in again.err
    assert "made anew" in again.err
    assert again.out == outcome.out
    assert contents(tmp_path / "tokens") == made


def test_another_division_leaves_old_shards_and_says_so(tmp_path: Path, tokenizer: Path) -> None:
    command = ("tokenize", "--data", jsonl(tmp_path, TEXTS), "--tokenizer", tokenizer, "--out", tmp_path / "tokens")
    assert qkv(*command).code == 0
    assert "1 shards of an earlier corpus" in qkv(*command, "--shard-size", "2KB", "--workers", "1").err


def test_a_new_tokenizer_is_learned_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(TEXTS))
    command = (
        "tokenize",
        "--data",
        tmp_path / "a.txt",
        "--blank-lines",
        "--tokenizer",
        "bpe:290",
        "--out",
        tmp_path / "t",
    )
    assert qkv(*command).code == 0
    made = contents(tmp_path / "t")
    assert open_tokens(tmp_path / "t").tokenizer.size == 290
    next((tmp_path / "t").glob("*.safetensors")).unlink()
    assert qkv(*command).code == 0
    assert contents(tmp_path / "t") == made


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--tokenizer", "missing"], "missing"),
        (["--tokenizer", "bpe:many"], "bpe:8000"),
        (["--data", "missing.jsonl"], "missing.jsonl"),
        (["--text", "txet"], "did you mean 'text'?"),
        (["--format", "xlsx"], "tsv, csv, jsonl, parquet, tar"),
        (["--shard-size", "big"], "500MB"),
        (["--ray", "--workers", "2"], "--workers is for one machine"),
        (["--data", "-"], "Standard input cannot be read in parts"),
    ],
)
def test_what_cannot_be_is_said(more: list[str], words: str, tmp_path: Path, tokenizer: Path) -> None:
    given = {"--data": str(jsonl(tmp_path, TEXTS)), "--tokenizer": str(tokenizer), "--out": str(tmp_path / "tokens")}
    for name in [name for name in given if name in more]:
        del given[name]
    outcome = qkv("tokenize", *(word for pair in given.items() for word in pair), *more)
    assert outcome.code == 2
    assert words in outcome.complaint


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_it_can_be_stopped_and_gone_on_with(number: signal.Signals, code: int, tmp_path: Path, tokenizer: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in "abc":
        jsonl(folder, TEXTS).rename(folder / f"{name}.jsonl")
    # So much in one file that it is not done before the signal comes.
    (folder / "z.txt").write_text("word " * 6_000_000)
    out = tmp_path / "tokens"
    command = ("tokenize", "--data", folder, "--tokenizer", tokenizer, "--out", out, "--workers", "2")
    with process(*command) as running:
        deadline = time.monotonic() + PATIENCE
        while len(list(out.glob("*.safetensors"))) < 2:
            assert running.poll() is None, running.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        running.send_signal(number)
        output, errors = running.communicate(timeout=PATIENCE)
    assert running.returncode == code, errors
    assert "give the same command again" in errors
    assert "Traceback" not in errors
    assert output == ""
    (folder / "z.txt").write_text("word")
    outcome = qkv(*command)
    assert outcome.code == 0
    assert outcome.out.startswith(f"{3 * len(TEXTS) + 1} documents")


def test_a_full_disk_is_one_sentence(tmp_path: Path, tokenizer: Path) -> None:
    """A real limit on the size of files, which the system enforces as it does a full disk."""
    data = jsonl(tmp_path, TEXTS * 80)
    limited = ["bash", "-c", 'ulimit -f 64; trap "" XFSZ; exec "$@"', "-"]
    command = [*limited, sys.executable, "-m", "qkv", "tokenize", "--data", data, "--tokenizer", tokenizer]
    done = subprocess.run(
        [*map(str, command), "--out", str(tmp_path / "tokens"), "--workers", "1"],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done
    assert "cannot be written to" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "tokens").glob("*.safetensors"))
    assert not list((tmp_path / "tokens").glob(".*.partial"))
    assert json.loads((tmp_path / "tokens" / "tokens.json").read_text())["version"] == 1


def test_ray_is_asked_for_by_its_name(tmp_path: Path, tokenizer: Path) -> None:
    if find_spec("ray") is not None:
        pytest.skip("Ray is installed: tests/data/test_ray_tokens.py has it make shards")
    given = ("--data", jsonl(tmp_path, TEXTS), "--tokenizer", tokenizer, "--out", tmp_path / "tokens")
    outcome = qkv("tokenize", *given, "--ray")
    assert outcome.code == 2
    assert "pip install 'qkv[ray]'" in outcome.complaint
