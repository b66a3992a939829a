"""`qkv runs`: a list, one run at length, several side by side, plots, a page, JSON, and broken folders told of."""

import json
from pathlib import Path

import pytest

from tests.cli.command import qkv, train


@pytest.fixture(scope="module")
def folder(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that differ in their seed and rate, and two broken folders."""
    place = tmp_path_factory.mktemp("all")
    for name, seed, rate in (("one", "1", "0.01"), ("deeper/two", "2", "0.001")):
        outcome = train(words, place / name, "--seed", seed, "--learning-rate", rate, "--evaluate-every", "1")
        assert outcome.code == 0, outcome.err
    for name, content in (("torn", "{"), ("other", "[]")):
        (place / name).mkdir()
        (place / name / "run.json").write_text(content)
    return place


def test_runs_are_listed_and_broken_ones_told_of(folder: Path) -> None:
    outcome = qkv("runs", folder)
    assert outcome.code == 0
    head, *rows = outcome.out.splitlines()
    assert head.split()[:3] == ["run", "state", "family"]
    assert [row.split()[0] for row in rows] == ["one", "deeper/two"]
    assert [row.split()[1:3] for row in rows] == [["finished", "transformer-prenorm"]] * 2
    assert "words.tsv" in rows[0]
    left_out = outcome.err.splitlines()
    assert len(left_out) == 2
    assert all(line.startswith("qkv: Left out: The file ") for line in left_out)


def test_runs_are_chosen_and_put_in_order(folder: Path) -> None:
    def shown(*more: str) -> list[str]:
        return [line.split()[0] for line in qkv("runs", folder, *more).out.splitlines()[1:]]

    assert shown("--reverse") == ["deeper/two", "one"]
    assert shown("--sort", "train.seed", "--reverse") == ["deeper/two", "one"]
    assert shown("--where", "train.seed=2") == ["two"]
    assert "no such runs" in qkv("runs", folder, "--where", "steps>1000").complaint
    assert "did you mean steps" in qkv("runs", folder, "--sort", "stepps").complaint
    assert "no folder" in qkv("runs", folder / "nowhere").complaint


def test_one_run_is_told_at_length_with_the_command_that_repeats_it(folder: Path) -> None:
    out = qkv("runs", folder / "one").out
    lines = dict(line.split(None, 1) for line in out.splitlines() if line.startswith(("state", "repeat", "command")))
    assert lines["state"] == "finished"
    assert lines["command"].startswith("qkv train text-to-text --data ")
    assert f"--config {folder / 'one' / 'train.toml'} --out {folder / 'one'}-again" in lines["repeat"]
    assert "train/loss" in out, "it is drawn too"
    assert "*" in out


def test_several_runs_stand_side_by_side_with_what_differs(folder: Path) -> None:
    out = qkv("runs", folder / "one", folder / "deeper" / "two", "--plot", "validation/loss").out
    came, _, rest = out.partition("What differs:")
    unlike, _, drawn = rest.partition("validation/loss")
    assert "best loss" in came
    rows = {line.split()[0]: line.split()[1:] for line in unlike.splitlines() if line}
    assert rows["train.seed"] == ["1", "2"]
    assert rows["optimizer.groups.0.initial_lr"] == ["0.01", "0.001"]
    assert "train.steps" not in rows
    assert "o" in drawn


def test_the_page_and_its_pictures_are_written(folder: Path, tmp_path: Path) -> None:
    outcome = qkv("runs", folder, "--page", tmp_path / "page", "--against", "seconds")
    assert outcome.code == 0
    text = (tmp_path / "page" / "page.html").read_text()
    assert "train.seed" in text
    assert (tmp_path / "page" / "train-loss-by-seconds.png").stat().st_size > 1000


def test_all_of_it_is_json(folder: Path) -> None:
    found = json.loads(qkv("runs", folder / "one", folder / "deeper" / "two", "--json").out)
    assert [run["settings"]["train"]["seed"] for run in found["runs"]] == [1, 2]
    assert found["differences"]["train.seed"] == [1, 2]
    listed = json.loads(qkv("runs", folder, "--json").out)
    assert len(listed["broken"]) == 2
    assert listed["runs"][0]["steps"] == 3
    assert json.loads(qkv("runs", folder, "--json", "--where", "steps>99").out)["runs"] == []


def test_a_narrow_window_leaves_columns_out(folder: Path) -> None:
    from qkv.cli.runs import listed
    from qkv.train.history import read_histories

    found, _ = read_histories([folder])
    for width in (60, 80, 100):
        text = listed(found, width)
        assert max(map(len, text.splitlines())) <= width
        assert "best loss" in text
