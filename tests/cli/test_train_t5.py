"""`qkv train t5`: gaps in running text, from the command line."""

from pathlib import Path

import pytest

from qkv.api.loading import load
from tests.api.corpus import DOCUMENTS
from tests.api.translators import t5_folder
from tests.cli.command import Outcome, qkv
from tests.cli.test_train_text import paste_next, refused, well
from tests.cli.text_models import save_reader

TINY = ["--size", "width=16,key_width=8,hidden=32,heads=2,layers=1", "--tokenizer", "bpe:280"]


@pytest.fixture(scope="module")
def verses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "verses.txt"
    file.write_text("\n\n".join(DOCUMENTS))
    return file


def train(verses: Path, out: Path, *more: str | Path, steps: str = "3") -> Outcome:
    own = ["--data", verses, "--blank-lines", "--length", "32", "--device", "cpu", "--steps", steps, "--out", out]
    return qkv("train", "t5", *own, *more)


def test_a_t5_is_trained_and_fills_gaps(verses: Path, tmp_path: Path) -> None:
    outcome = well(train(verses, tmp_path / "t5", *TINY, "--cut-out", "0.3", "--stretch", "2"))
    held = next(line for line in outcome.out.splitlines() if line.startswith("Held out:"))
    assert "loss" in held
    assert "perplexity" in held
    assert load(tmp_path / "t5", "cpu").model.family == "t5"
    paste_next(outcome, tmp_path)


def test_a_training_goes_on(verses: Path, tmp_path: Path) -> None:
    well(train(verses, tmp_path / "t5", *TINY, steps="2"))
    refused(train(verses, tmp_path / "t5", *TINY, steps="4"), "already holds")
    assert "Resuming after step 2" in well(train(verses, tmp_path / "t5", *TINY, "--resume", steps="4")).err


def test_a_published_t5_is_trained_further(verses: Path, tmp_path: Path) -> None:
    published = t5_folder(tmp_path / "published")
    well(train(verses, tmp_path / "further", "--model", published, "--lora", "2"))
    before, after = load(published, "cpu"), load(tmp_path / "further", "cpu")
    assert after.model.sizes == before.model.sizes
    refused(train(verses, tmp_path / "out", "--model", published, *TINY), "keeps its size")


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--cut-out", "1.5"], "between 0 and 1"),
        (["--stretch", "0"], "at least 1"),
        (["--length", "2"], "at least 3"),
        (["--family", "gpt2"], "does not turn one text into another"),
        (["--freeze", "1"], "--model"),
    ],
)
def test_what_cannot_be_trained(options: list[str], hint: str, verses: Path, tmp_path: Path) -> None:
    tiny = [] if "--family" in options else TINY
    refused(train(verses, tmp_path / "out", *tiny, *options), hint)
    assert not (tmp_path / "out").exists()


def test_a_model_of_another_kind_is_refused(verses: Path, model: Path, tmp_path: Path) -> None:
    refused(train(verses, tmp_path / "out", "--model", model), "no sentinels")
    bert = save_reader(tmp_path / "bert", "masked")
    refused(train(verses, tmp_path / "out", "--model", bert), "encoder-decoder such as T5 or Marian")
