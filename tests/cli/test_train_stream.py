"""`qkv train lm --stream`: texts that stay on disk, mixed by weights, killed and gone on with."""

import gzip
import json
import time
from pathlib import Path

import pytest
import torch

from qkv.files import read_tensors
from tests.cli.command import Outcome, qkv
from tests.cli.test_kill import Training, moments, quiet_tracker
from tests.data.some_shards import byte_tokenizer, write_corpus

__all__ = ["quiet_tracker"]
SMALL = [
    "--tokenizer", "bytes", "--size", "width=8,hidden=8,layers=1,heads=1", "--length", "24", "--batch-rows", "4",
    "--steps", "3", "--device", "cpu",
]  # fmt: skip


def mixed(folder: Path) -> list[str]:
    for name, (files, each) in {"large": (4, 9), "small": (1, 2)}.items():
        write_corpus(folder / name, files, each)
    data = ["--data", str(folder / "large"), "--data", str(folder / "small"), "--weight", "0.7", "--weight", "0.3"]
    return [*data, "--stream", "--window", "2", "--tokens", str(folder / "tokens")]


def test_a_mixture_is_trained_on_and_its_options_are_kept(tmp_path: Path) -> None:
    outcome = qkv("train", "lm", *mixed(tmp_path), *SMALL, "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    assert "5 shards of" in outcome.err
    assert "qkv run" in outcome.out
    again = qkv("train", "lm", "--config", tmp_path / "run" / "train.toml", "--out", tmp_path / "again")
    assert again.code == 0, again.err
    runs = [tmp_path / name / "metrics.jsonl" for name in ("run", "again")]
    losses = [[json.loads(line).get("loss") for line in run.read_text().splitlines()] for run in runs]
    assert losses[0] == losses[1]
    assert "large, small" in qkv("runs", tmp_path).out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--weight", "1"], "--weight is for texts that are read from disk"),
        (["--window", "2"], "--window is for texts that are read from disk"),
        (["--data", "OTHER"], "give --stream, and --weight for each"),
        (["--data", "OTHER", "--stream"], "2 --data need 2 --weight, but there are 0"),
        (["--stream", "--weight", "1"], "leave out --weight"),
        (["--data", "TEXTS", "--stream"], "given twice"),
        (["--data", "OTHER", "--stream", "--weight", "1", "--weight", "0"], "above 0, not 0"),
        (["--stream", "--hold-out", "2"], "must lie between 0 and 1"),
    ],
)
def test_what_cannot_be_is_told(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    texts, other = write_corpus(tmp_path / "texts", 2, 3), write_corpus(tmp_path / "other", 1, 2)
    places = {"TEXTS": str(texts), "OTHER": str(other)}
    said = [places.get(each, each) for each in arguments]
    tokens = ["--tokens", str(tmp_path / "tokens")] if "--stream" in said else []
    outcome = qkv("train", "lm", "--data", texts, *said, *tokens, *SMALL, "--out", tmp_path / "run")
    assert outcome.code == 2
    assert complaint in outcome.complaint


def test_standard_input_is_not_streamed(tmp_path: Path) -> None:
    outcome = qkv("train", "lm", "--data", "-", "--stream", *SMALL, "--out", tmp_path / "run", stdin="text")
    assert "Standard input cannot be read in parts" in outcome.complaint


def test_a_broken_shard_ends_the_run_and_mended_it_goes_on(tmp_path: Path) -> None:
    """As a download that was cut short: all but its windows is as in a run that never met it."""
    texts, tokenizer = write_corpus(tmp_path / "texts", 4, 2), tmp_path / "tokenizer.json"
    byte_tokenizer().save(tokenizer)
    for file in texts.iterdir():
        (texts / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    broken = sorted(texts.iterdir())[3]
    good = broken.read_bytes()

    def trained(name: str, *more: str) -> Outcome:
        options = [*SMALL, "--tokenizer", tokenizer, "--steps", "40", "--save-every", "1", "--hold-out", "0"]
        stream = ["--stream", "--window", "1", "--tokens", tmp_path / f"tokens of {name}"]
        return qkv("train", "lm", "--data", texts, *stream, *options, "--out", tmp_path / name, *more)

    assert trained("unbroken").code == 0
    broken.write_bytes(good[: len(good) // 2])
    stopped = trained("broken")
    assert stopped.code == 2
    assert f"The shard {broken.name}" in stopped.complaint
    broken.write_bytes(good)
    mended = trained("broken", "--resume")
    assert mended.code == 0, mended.err
    assert f"Changed since the run began: {broken.name}." in mended.err
    one, other = (read_tensors(tmp_path / name / "model.safetensors") for name in ("unbroken", "broken"))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_a_streamed_run_that_is_killed_ends_as_an_unbroken_one(tmp_path: Path) -> None:
    """Also while texts are cut into tokens, before there is any checkpoint."""
    data = mixed(tmp_path)
    more = ["--hold-out", "0.2", *data[4:-1]]
    trainings = [Training(tmp_path / name, 120, *more, str(tmp_path / f"tokens-{name}")) for name in ("whole", "cut")]
    for training in trainings:
        training.options[2:5] = data[:4]  # in place of its own
    unbroken, killed = trainings
    unbroken.finish()
    for wait_first, seconds in moments(6, seed=2):
        process = killed.start()
        if wait_first:
            killed.wait_for_save(process)
        time.sleep(seconds)
        assert process.is_alive(), killed.log.read_text()
        process.kill()
        process.join()
    killed.finish()
    said = killed.log.read_text()
    assert "Resuming after step" in said
    assert "Traceback" not in said
    assert killed.outcome() == unbroken.outcome()
