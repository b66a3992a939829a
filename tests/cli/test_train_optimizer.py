"""`--optimizer`, `--schedule`, `--ema`, `--average` and `--find-rate` of every training."""

import json
import re
from pathlib import Path

import pytest

from qkv.api.text_choice import muon_rate
from qkv.train.optimizers import OPTIMIZERS
from qkv.train.schedules import SCHEDULES
from tests.api.corpus import DOCUMENTS
from tests.cli.command import Outcome, qkv, train, write_words

TINY = ["--size", "width=16,hidden=32,heads=2,layers=1", "--length", "32", "--device", "cpu", "--hold-out", "0"]


@pytest.fixture(scope="module")
def verses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "verses.txt"
    file.write_text("\n\n".join(DOCUMENTS))
    return file


def lm(verses: Path, out: Path, *more: str | Path) -> Outcome:
    budget = [] if "--steps" in more else ["--steps", "3"]
    own = ["--data", verses, "--blank-lines", "--tokenizer", "bpe:300", "--out", out]
    return qkv("train", "lm", *own, *TINY, *budget, *more)


def settings(folder: Path) -> dict[str, dict]:
    return json.loads((folder / "run.json").read_text())["settings"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_is_taken_with_a_rate_and_decay_that_suit_it(verses: Path, tmp_path: Path, name: str) -> None:
    outcome = lm(verses, tmp_path / "run", "--optimizer", name)
    assert outcome.code == 0, outcome
    found = settings(tmp_path / "run")["optimizer"]
    assert found["name"].lower() == name
    rate = found["groups"][0]["initial_lr"]
    assert rate == pytest.approx({"lion": 2e-4, "adafactor": 1e-2, "muon": muon_rate(16)}.get(name, 1e-3))
    decays = sorted({group["weight_decay"] for group in found["groups"]})
    assert decays == pytest.approx([0.0, 0.1 if name == "muon" else 0.1 * 1e-3 / rate])


def test_a_rate_that_is_given_is_kept_and_a_run_goes_on(verses: Path, tmp_path: Path) -> None:
    own = ["--optimizer", "muon", "--learning-rate", "0.02"]
    assert lm(verses, tmp_path / "run", *own).code == 0
    assert settings(tmp_path / "run")["optimizer"]["groups"][0]["initial_lr"] == 0.02
    assert lm(verses, tmp_path / "run", *own, "--resume", "--steps", "5").code == 0
    other = lm(verses, tmp_path / "run", "--optimizer", "lion", "--learning-rate", "0.02", "--resume", "--steps", "7")
    assert other.code == 2
    assert "Muon" in other.complaint


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_by_name(verses: Path, tmp_path: Path, name: str) -> None:
    assert lm(verses, tmp_path / "run", "--schedule", name, "--warmup", "2").code == 0
    found = settings(tmp_path / "run")["schedule"]
    assert (found["name"], found["warmup"]) == (SCHEDULES[name].__name__, 2)


def test_averages(verses: Path, tmp_path: Path) -> None:
    moving = lm(verses, tmp_path / "moving", "--ema", "0.9")
    assert moving.code == 0
    assert "moving average" in moving.out
    mean = lm(verses, tmp_path / "mean", "--average", "2", "--evaluate-every", "1")
    assert "mean of the last 2 checkpoints" in mean.out


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--optimizer", "adam-w"], "did you mean adamw?"),
        (["--optimizer", "sgd"], "there are adamw, adamw8bit, muon, lion, adafactor."),
        (["--schedule", "cosin"], "did you mean cosine?"),
        (["--learning-rate", "0"], "above 0"),
        (["--ema", "1.5"], "between 0 and 1"),
        (["--ema", "0.9", "--average", "2"], "not both"),
        (["--find-rate", "--overwrite"], "--find-rate comes before a run"),
    ],
)
def test_what_is_refused(verses: Path, tmp_path: Path, wrong: list[str], said: str) -> None:
    outcome = lm(verses, tmp_path / "run", *wrong)
    assert outcome.code == 2
    assert said in outcome.complaint
    assert list(tmp_path.iterdir()) == []


def check_suggestion(outcome: Outcome) -> None:
    assert outcome.code == 0, outcome
    assert "learning rate" in outcome.out
    assert re.search(r"^Suggested: --learning-rate \d", outcome.out, flags=re.MULTILINE)


def test_a_rate_is_found_drawn_and_suggested(verses: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")  # a model that is there is not in the way, and is left alone
    check_suggestion(lm(verses, tmp_path / "run", "--find-rate"))
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*")] == [Path("run"), Path("run/config.json")]


def test_a_muon_rate_pairs(tmp_path: Path) -> None:
    words = write_words(tmp_path / "words.tsv")
    check_suggestion(train(words, tmp_path / "run", "--find-rate", "--optimizer", "lion"))
    assert list(tmp_path.iterdir()) == [words]
