"""The recipe that `make try` runs, on a little of the dictionary: what it says, and when."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from qkv.data.pronunciation import PronunciationSplits, pronunciation_splits
from recipes import pronounce
from recipes.pronounce import Announcing, by_letter, main

RECORD = {"step": 1, "loss": 1.0, "tokens_per_second": 1.0, "learning_rate": 1e-3, "skipped": 0}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = pronunciation_splits()
    few = PronunciationSplits(splits.train[::1000], splits.valid[::300], splits.test[::600])
    monkeypatch.setattr(pronounce, "pronunciation_splits", lambda: few)


def test_the_time_is_told_from_updates_that_were_measured_and_again_where_the_pace_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream, clock = io.StringIO(), [100.0]
    monkeypatch.setattr(pronounce.time, "monotonic", lambda: clock[0])
    reporter = Announcing(1000)
    reporter.console = Console(file=stream, width=200)
    paces = [(100, 20.0), (200, 22.0), (300, 25.0), (400, 28.0), (500, 90.0), (600, 150.0), (700, 210.0)]
    for step, seconds in paces:  # the first are slow, and others come
        clock[0] = 102.0 + seconds
        reporter.train({**RECORD, "step": step, "seconds": seconds}, step / 1000)
    # 2 s before the first update, 25 of updates, and at 0.03 s each those that are left and what takes as long as some
    assert reporter.told[0] == pytest.approx(2.0 + 25.0 + 0.03 * (700 + pronounce.BESIDE))
    told = [line for line in stream.getvalue().splitlines() if "all of it" in line]
    assert told[0] == "Measured on 300 updates: all of it takes about 52s."
    assert len(told) == len(reporter.told) > 1
    assert told[-1].startswith("The pace has changed with what else runs here: all of it takes about ")
    assert reporter.taken() == f"3m32s; about 52s were announced, then about {told[-1].rpartition(' ')[2]}"[:-1]


def test_a_run_that_learned_nothing_says_so_and_names_the_packaged_model_apart(
    few: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(tmp_path / "run", updates=3, device="cpu")
    shown = capsys.readouterr().out
    packaged, own = shown.split("Now a model of your own learns it from nothing, in 3 updates.")
    assert packaged.startswith("The model that is packaged with qkv answers at once:\n  although")
    assert "qkv run pronounce yourword" in packaged
    assert "The model of this run, on " in own
    assert "It has not learned: per " in own
    assert "packaged" not in own
    assert (tmp_path / "run" / "attention.html").exists()


def test_a_table_of_letters_is_right_where_letters_sound_as_they_most_often_do(few: None) -> None:
    assert by_letter(["bin", "don't"]) == ["B IH N", "D AH N T"]
