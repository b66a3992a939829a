"""Options from a file: checked like those of the command line, kept with the run, and enough to repeat it."""

import json
import shlex
import tomllib
from pathlib import Path

import pytest
import torch

from qkv.cli.config_file import value_of, written
from qkv.cli.main import app_for
from qkv.errors import QkvError
from qkv.files import read_tensors
from tests.api.corpus import DOCUMENTS
from tests.cli.command import Outcome, qkv, train

SIZE = "width=16,hidden=32,heads=2,layers=1"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    file = tmp_path / "verses.txt"
    file.write_text("\n\n".join(DOCUMENTS))
    return file


def lm(config: Path, *more: str | Path) -> Outcome:
    return qkv("train", "lm", "--config", config, *more)


def write(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    return file


def test_a_training_takes_its_options_from_a_file_and_the_command_line_goes_first(texts: Path, tmp_path: Path) -> None:
    lines = [
        f'data = "{texts}"',
        "blank-lines = true",
        "learning_rate = 0.01",
        "run.steps = 2",
        "run.batch-rows = 4",
        "run.length = 24",
        "run.seed = 7",
        'run.device = "cpu"',
        "[new]",
        'tokenizer = "bytes"',
        "size = { width = 16, hidden = 32, heads = 2, layers = 1 }",
    ]
    config = write(tmp_path / "lm.toml", "\n".join(lines))
    outcome = lm(config, "--seed", "3", "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    settings = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert (settings["train"]["steps"], settings["train"]["seed"], settings["sizes"]["width"]) == (2, 3, 16)
    assert settings["data"]["batching"].startswith("RowCount(rows=4")
    assert settings["data"]["length"] == 24
    assert settings["optimizer"]["groups"][0]["initial_lr"] == 0.01
    kept = tomllib.loads((tmp_path / "run" / "train.toml").read_text())
    assert (kept["command"], kept["run"]["seed"], kept["run"]["steps"]) == ("train lm", 3, 2)
    assert kept["corpus"]["blank_lines"] is True


def test_a_run_repeated_by_its_own_command_has_the_same_weights_bit_for_bit(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = qkv("train", "lm", "--data", texts.name, "--blank-lines", "--tokenizer", "bpe:280", "--size", SIZE,
               "--steps", "5", "--length", "24", "--hold-out", "0.3", "--device", "cpu", "--seed", "5", "--warmup", "2",
               "--out", "runs/first", "--evaluate-every", "2")  # fmt: skip
    assert made.code == 0, made.err
    described = json.loads(Path("runs/first/run.json").read_text(encoding="utf-8"))
    session = described["sessions"][0]
    assert session["command"][:5] == ["qkv", "train", "lm", "--data", "verses.txt"]
    assert session["by"] == "qkv"
    torch.manual_seed(99)  # nothing that was before matters
    again = qkv(*shlex.split(session["repeat"])[1:])
    assert again.code == 0, again.err
    one, other = (read_tensors(Path("runs") / name / "model.safetensors") for name in ("first", "first-again"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    repeated = json.loads(Path("runs/first-again/run.json").read_text(encoding="utf-8"))
    assert repeated["settings"] == described["settings"]
    assert repeated["data"] == described["data"]
    assert repeated["sessions"][0]["weights_at_start"] == session["weights_at_start"]
    assert qkv(*session["command"][1:]).complaint.startswith("qkv: runs/first already holds a run"), "the exact command"

    changed = qkv(*shlex.split(session["repeat"])[1:], "--seed", "6", "--overwrite")
    assert changed.code == 0
    third = read_tensors(Path("runs/first-again/model.safetensors"))
    assert not all(torch.equal(one[name], third[name]) for name in one)


def test_what_a_run_keeps_is_read_back_to_the_same(words: Path, tmp_path: Path) -> None:
    """With options that may be repeated, texts that need quotes, and another task."""
    first = train(words, tmp_path / "one", "--metric", "per", "--metric", "ser", "--prefix", 'say "\\": é\t')
    assert first.code == 0, first.err
    second = qkv("train", "text-to-text", "--config", tmp_path / "one" / "train.toml", "--out", tmp_path / "two")
    assert second.code == 0, second.err
    kept = [tomllib.loads((tmp_path / name / "train.toml").read_text()) for name in ("one", "two")]
    assert kept[0]["metric"] == ["per", "ser"]
    assert kept[0]["pairs"]["prefix"] == 'say "\\": é\t'
    for each, name in zip(kept, ("one", "two"), strict=True):
        assert each["budget"].pop("out") == str(tmp_path / name)
    assert kept[0] == kept[1]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("stpes = 3", "qkv train lm has no option stpes: did you mean steps?"),
        ("[run]\nstpes = 3", "qkv train lm has no option run.stpes: did you mean run.steps?"),
        ("[rum]\nsteps = 3", "qkv train lm has no option rum: did you mean run?"),
        ("resume = true", "has no option resume"),
        ("steps = 3\n[run]\nsteps = 3", "gives the option steps twice"),
        ("steps = 3.5", "'--steps'"),
        ("steps = 'many'", "'--steps'"),
        ("steps = true", "steps should be a text or a number, but is true"),
        ("blank_lines = 1", "blank_lines should be true or false, but is 1"),
        ("steps = [1, 2]", "steps should be one text or number"),
        ("command = 'train mlm'", "is the configuration of qkv train mlm, not of qkv train lm"),
        ("steps 3", "is not TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_in_a_sentence(
    content: str, complaint: str, texts: Path, tmp_path: Path
) -> None:
    outcome = lm(write(tmp_path / "wrong.toml", content), "--data", texts, "--out", tmp_path / "run")
    assert outcome.code == 2
    assert complaint in outcome.complaint
    assert not (tmp_path / "run").exists()


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    assert "cannot be read (no such file" in lm(tmp_path / "none.toml", "--data", "x").complaint


def test_every_task_takes_a_file() -> None:
    """And its groups hold every option that is not its own, so that each has a dotted name."""
    import typer.main

    tasks = typer.main.get_command(app_for([])).commands["train"].commands  # type: ignore[attr-defined]
    assert len(tasks) >= 18
    for name, task in tasks.items():
        options = {each.name for each in task.params}
        assert {"config", "report_to"} <= options, name


def test_whom_to_tell_is_checked_before_anything_else(texts: Path, tmp_path: Path) -> None:
    outcome = qkv("train", "lm", "--data", texts, "--report-to", "tensorbord", "--out", tmp_path / "run")
    assert "did you mean tensorboard?" in outcome.complaint
    assert not (tmp_path / "run").exists()


def test_values_survive_toml() -> None:
    options = {
        "a": 'x"\n\x7f\\',
        "b": 1e-05,
        "c": True,
        "d": None,
        "e": ["p", "q"],
        "f": Path("r/s"),
        "g": -3,
        "config": 1,
    }
    found = tomllib.loads(written("train x", {"group": ["b", "c"]}, options))
    assert found == {"command": "train x", "a": 'x"\n\x7f\\', "e": ["p", "q"], "f": "r/s", "g": -3,
                     "group": {"b": 1e-05, "c": True}}  # fmt: skip
    with pytest.raises(QkvError, match="should be one text"):
        value_of(Path("x"), "names", ["a"], is_flag=False, several=False)
