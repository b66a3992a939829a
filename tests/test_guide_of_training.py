"""What the guide to training shows works: its commands, the second after the run was cut short."""

from pathlib import Path

import pytest

from qkv.api.texts_on_disk import SAMPLE_BYTES
from qkv.cli.train_corpus import LARGE
from qkv.data.sources import SHARD_BYTES
from qkv.data.streaming import LIMIT, SEEN, WINDOW
from qkv.train.checkpoint import Checkpoints
from qkv.train.settings import TrainSettings
from qkv.train.spikes import LEAST, REMEMBERED, ROLL_BACKS
from tests.api.corpus import DOCUMENTS
from tests.cli.shell import commands, paste
from tests.guides import blocks


def test_its_commands_work(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("\n\n".join(DOCUMENTS), encoding="utf-8")
    first, second = commands(blocks("training.md", "sh")[0])
    small = first.replace("--steps 200", "--steps 12").replace("--keep-every 100", "--keep-every 10")
    outcome = paste(small, tmp_path, "--hold-out", "0.3", "--batch-rows", "2", "--device", "cpu")
    assert outcome.code == 0, outcome
    checkpoints = Checkpoints(tmp_path / "runs" / "safe" / "checkpoints")
    assert checkpoints.steps()[-1] == 12
    checkpoints.forget_after(5)
    outcome = paste(second, tmp_path)
    assert outcome.code == 0, outcome
    assert "Resuming after step 5." in outcome.err
    assert checkpoints.steps() == [5, 10, 12]


def test_texts_that_stay_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One corpus, two by commands, and the same two in Python."""
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    (tmp_path / "book.txt").write_text("\n\n".join(DOCUMENTS), encoding="utf-8")
    (tmp_path / "notes.txt").write_text("\n\n".join(DOCUMENTS[::-1]).upper(), encoding="utf-8")
    for command in commands(blocks("training.md", "sh")[1]):
        small = command.replace("--steps 200", "--steps 3")
        outcome = paste(small, tmp_path, "--hold-out", "0.3", "--batch-rows", "2", "--device", "cpu")
        assert outcome.code == 0, outcome
    (code,) = blocks("training.md", "python")
    monkeypatch.chdir(tmp_path)
    exec(code.replace("steps=20", "steps=3"), {})
    records = (tmp_path / "runs" / "mixed-too" / "metrics.jsonl").read_text(encoding="utf-8")
    assert '"read": {"book.txt": ' in records


def test_its_numbers_are_those_of_the_code() -> None:
    assert (WINDOW, SEEN, LIMIT, SAMPLE_BYTES >> 20, SHARD_BYTES >> 20, LARGE) == (4, 64, 3600, 16, 64, 2e9)
    assert (REMEMBERED, LEAST, ROLL_BACKS, TrainSettings(steps=1).tolerate) == (8, 4, 5, 10)
