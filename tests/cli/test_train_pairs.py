"""`qkv train text-to-text --model`: fine-tuning an encoder-decoder with the options that other tasks have."""

from pathlib import Path

import pytest
import torch

from qkv.api.loading import load
from qkv.files import read_json
from tests.api.translators import SENTENCES, marian_folder, t5_folder
from tests.cli.command import Outcome, qkv, train
from tests.cli.test_train_text import changed, next_commands, paste_next, refused, well
from tests.cli.text_models import save_reader

PREFIX = "translate English to German: "


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return t5_folder(tmp_path_factory.mktemp("models") / "t5")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "pairs.tsv"
    file.write_text("en\tde\n" + "".join(f"{en} {number}\t{de}\n" for number, (en, de) in enumerate(SENTENCES)))
    return file


def tune(data: Path, model: Path, out: Path, *more: str | Path) -> Outcome:
    own = ["--data", data, "--source", "en", "--target", "de", "--model", model, "--out", out, "--device", "cpu"]
    budget = [] if "--steps" in more else ["--steps", "3"]
    return qkv("train", "text-to-text", *own, *budget, "--hold-out", "0.3", *more)


def test_a_loaded_t5_is_fine_tuned_runs_and_is_exported(t5: Path, data: Path, tmp_path: Path) -> None:
    outcome = well(tune(data, t5, tmp_path / "run", "--prefix", PREFIX, "--metric", "bleu"))
    assert "bleu" in outcome.out
    assert PREFIX in next_commands(outcome)[0]
    paste_next(outcome, tmp_path)
    one = well(qkv("run", tmp_path / "run", PREFIX + "The cat")).out
    assert well(qkv("run", tmp_path / "run", "The cat", "--prefix", PREFIX)).out == one
    assert well(qkv("run", tmp_path / "run", "", "--prefix", PREFIX)).out == "\n"  # a blank line stays one
    well(qkv("export", tmp_path / "run", tmp_path / "out"))
    assert read_json(tmp_path / "out" / "config.json")["model_type"] == "t5"
    assert well(qkv("run", tmp_path / "out", PREFIX + "The cat")).out == one


def test_marian_and_models_of_our_own_are_trained_further(data: Path, words: Path, model: Path, tmp_path: Path) -> None:
    marian = marian_folder(tmp_path / "marian")
    well(tune(data, marian, tmp_path / "further"))
    assert (tmp_path / "further" / "source.spm").read_bytes() == (marian / "source.spm").read_bytes()
    own = ["--data", words, "--source", "word", "--target", "phonemes", "--model", model, "--steps", "2"]
    paste_next(well(qkv("train", "text-to-text", *own, "--out", tmp_path / "own", "--hold-out", "0")), tmp_path)


def test_parts_of_a_model_stay_as_they_are(t5: Path, data: Path, tmp_path: Path) -> None:
    before = load(t5, "cpu")
    before.save(tmp_path / "before")
    well(tune(data, t5, tmp_path / "lora", "--lora", "2"))
    assert changed(tmp_path / "before", tmp_path / "lora") == {"query", "value"}
    well(tune(data, t5, tmp_path / "frozen", "--freeze", "1", "--layer-decay", "0.5"))
    old, new = before.model.state_dict(), load(tmp_path / "frozen", "cpu").model.state_dict()
    same = {name for name in old if torch.equal(old[name], new[name])}
    assert {name for name in old if name.startswith(("source.", "encoder.blocks.0.", "decoder.blocks.0."))} <= same
    assert not any(name.startswith(("encoder.blocks.1.", "decoder.blocks.1.")) for name in same)


def test_a_fine_tuning_goes_on(t5: Path, data: Path, tmp_path: Path) -> None:
    well(tune(data, t5, tmp_path / "out", "--lora", "2", "--steps", "2"))
    refused(tune(data, t5, tmp_path / "out"), "already holds")
    outcome = well(tune(data, t5, tmp_path / "out", "--lora", "2", "--steps", "4", "--resume"))
    assert "Resuming after step 2" in outcome.err


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--family", "rnn"], "keeps its family"),
        (["--size", "width=8"], "keeps its size"),
        (["--tokenizer", "bpe:300"], "keeps its tokenizer"),
        (["--target-tokenizer", "bpe:300"], "--target-tokenizer"),
        (["--dropout", "0.3"], "keeps its dropout"),
        (["--subword-dropout", "0.1"], "bpe tokenizer"),
        (["--lora", "2", "--freeze", "1"], "one of the two"),
        (["--freeze", "9"], "9 layers"),
        (["--layer-decay", "2"], "decay"),
        (["--learning-rate", "0"], "above 0"),
        (["--label-smoothing", "2"], "moothing"),
        (["--max-length", "1"], "at most 1 tokens"),
        (["--source", "fr"], "no column 'fr'"),
        (["--metric", "accuracy"], "accuracy"),
    ],
)
def test_what_a_loaded_model_cannot_be_trained_with(
    options: list[str], hint: str, t5: Path, data: Path, tmp_path: Path
) -> None:
    refused(tune(data, t5, tmp_path / "out", *options), hint)
    assert not (tmp_path / "out").exists()


def test_adapting_needs_a_model_that_turns_one_text_into_another(words: Path, data: Path, tmp_path: Path) -> None:
    refused(train(words, tmp_path / "out", "--lora", "2"), "--lora", "--model")
    bert = save_reader(tmp_path / "bert", "masked")
    refused(tune(data, bert, tmp_path / "out"), "encoder-decoder such as T5 or Marian")
    refused(tune(data, tmp_path / "absent", tmp_path / "out"), "absent")


def test_the_help_names_the_tasks() -> None:
    said = " ".join(well(qkv("train", "text-to-text", "--help")).out.split())
    assert "Translation, summarisation, paraphrase" in said
    for option in ("--model", "--prefix", "--lora", "--freeze", "--layer-decay"):
        assert option in said


def test_a_model_that_learned_nothing_is_told_apart(words: Path, tmp_path: Path) -> None:
    lost = train(words, tmp_path / "lost", "--metric", "per", "--steps", "1")
    assert "It has not learned: per " in lost.err
    rows = "".join(f"{letter * 4}\t{letter.upper()}\n" for letter in "abcdefgh")
    (tmp_path / "rows.tsv").write_text("word\tphonemes\n" + rows, encoding="utf-8")
    more = ["--valid", tmp_path / "rows.tsv", "--hold-out", "0", "--steps", "150", "--learning-rate", "0.02"]
    learned = train(tmp_path / "rows.tsv", tmp_path / "learned", "--metric", "per", *more)
    assert learned.code == 0
    assert "It has not learned" not in learned.err
