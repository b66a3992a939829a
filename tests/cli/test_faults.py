"""What goes wrong in real life ends in one clear line and an exit code, or in a saved state; never in a traceback."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.cli.main import main
from qkv.data.tokenizer import TextTokenizer
from tests.cli.command import Outcome, qkv, train, write_words


def refused(outcome: Outcome, *words: str) -> None:
    """Exit code 2, and one line that says these words."""
    assert outcome.code == 2, outcome
    assert outcome.complaint.startswith("qkv: ")
    assert [word for word in words if word not in outcome.complaint] == []


@pytest.fixture
def copied(model: Path, tmp_path: Path) -> Path:
    """A copy of the model that may be damaged."""
    return shutil.copytree(model, tmp_path / "copied")


# --- paths ------------------------------------------------------------------------------------------------------------


def test_data_that_is_not_there(tmp_path: Path) -> None:
    refused(train(tmp_path / "absent.tsv", tmp_path / "out"), "no file", "absent.tsv")
    assert not (tmp_path / "out").exists()


def test_validation_data_that_is_not_there(words: Path, tmp_path: Path) -> None:
    refused(train(words, tmp_path / "out", "--valid", tmp_path / "absent.tsv"), "no file", "absent.tsv")


@pytest.mark.parametrize("verb", ["run", "look"])
def test_a_model_that_is_not_there(verb: str, tmp_path: Path) -> None:
    refused(qkv(verb, tmp_path / "absent", "cat"), "absent", "config.json")


@pytest.mark.parametrize("verb", ["run", "look"])
def test_a_folder_that_holds_no_model(verb: str, tmp_path: Path) -> None:
    refused(qkv(verb, tmp_path, "cat"), f"{tmp_path} holds no model", "config.json")


def test_inputs_that_are_not_there(model: Path, tmp_path: Path) -> None:
    refused(qkv("run", model, "--input", tmp_path / "absent.txt"), "no file", "absent.txt")


def test_a_file_where_the_run_folder_should_be(words: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("in the way")
    refused(train(words, tmp_path / "out"), "is a file")


def test_a_place_where_nothing_can_be_written(words: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    refused(train(words, tmp_path / "file" / "out"), str(tmp_path / "file"))


def test_a_page_where_nothing_can_be_written(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    refused(qkv("look", model, "cat", "--html", tmp_path / "file" / "page.html"), "Cannot write")


# --- contents ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", "word\tphonemes\n"])
def test_data_without_rows(content: str, tmp_path: Path) -> None:
    file = tmp_path / "empty.tsv"
    file.write_text(content)
    refused(train(file, tmp_path / "out"), "no rows", "empty.tsv")


def test_an_empty_standard_input(model: Path, tmp_path: Path) -> None:
    refused(qkv("run", model), "no input")
    refused(qkv("run", model, "--input", "-"), "no input")
    refused(train("-", tmp_path / "out", "--format", "tsv"), "no rows", "standard input")


def test_an_empty_file_of_inputs(model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    refused(qkv("run", model, "--input", tmp_path / "empty.txt"), "no input", "empty.txt")


def test_wrong_columns_are_answered_with_the_right_ones(words: Path, tmp_path: Path) -> None:
    refused(train(words, tmp_path / "out", "--source", "wrod"), "'wrod'", "did you mean 'word'", "word, phonemes")


def test_every_row_is_bad(tmp_path: Path) -> None:
    file = tmp_path / "bad.tsv"
    file.write_text("word\tphonemes\n" + "cat\t\n" * 7)
    refused(train(file, tmp_path / "out"), "None of the 7 rows", "line 2", "'phonemes' is empty")


def test_some_rows_are_bad(tmp_path: Path) -> None:
    file = write_words(tmp_path / "words.tsv")
    file.write_bytes(file.read_bytes() + b"dag\n" + b"\xff\tD AE G\n" * 9)
    outcome = train(file, tmp_path / "out")
    assert outcome.code == 0
    assert f"{file} line 8: 1 columns where 2 are expected" in outcome.err
    assert f"{file} line 9: the line is not valid UTF-8" in outcome.err
    assert "10 bad rows in all" in outcome.err


def test_standard_input_needs_a_format(tmp_path: Path) -> None:
    refused(train("-", tmp_path / "out"), "Standard input", "--format", "tsv, csv, jsonl, parquet")


def test_a_name_that_tells_no_format(words: Path, tmp_path: Path) -> None:
    shutil.copy(words, tmp_path / "words.txt")
    refused(train(tmp_path / "words.txt", tmp_path / "out"), "words.txt", "--format")
    assert train(tmp_path / "words.txt", tmp_path / "out", "--format", "tsv").code == 0


def test_a_table_without_a_header_line(words: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.tsv"
    bare.write_text(words.read_text(encoding="utf-8").partition("\n")[2])
    refused(train(bare, tmp_path / "out"), "no column 'word'", "--names")
    refused(train(bare, tmp_path / "out", "--names", "word,,phonemes"), "'word,,phonemes'", "commas")
    assert train(bare, tmp_path / "out", "--names", "word, phonemes").code == 0


def test_a_table_of_inputs_needs_a_column(model: Path, words: Path) -> None:
    refused(qkv("run", model, "--input", words), "--source")


def test_inputs_that_are_not_text(model: Path, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("caf\xe9\n".encode("latin-1"))
    refused(qkv("run", model, "--input", tmp_path / "latin.txt"), "Line 1", "latin.txt", "UTF-8")
    refused(qkv("run", model, stdin=b"cat\n\xff\n"), "Line 2 of standard input", "UTF-8")


# --- choices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "hint"),
    [
        ("--family", "transfromer", "did you mean transformer"),
        ("--size", "dsek", "did you mean desk"),
        ("--size", "widht=8", "did you mean width"),
        ("--size", "width=0", "above 0"),
        ("--size", "width=9,heads=2", "9"),
        ("--target-tokenizer", "tokens", "there are word, symbols"),
        ("--source-tokenizer", "charcters", "did you mean characters"),
        ("--metric", "blue", "did you mean bleu"),
        ("--precision", "float16", "float32, bfloat16"),
        ("--device", "gpu", "cpu, cuda or auto"),
        ("--steps", "0", "steps must be above 0"),
        ("--minutes", "-1", "minutes must be above 0"),
        ("--hold-out", "1.5", "between 0 and 1"),
        ("--dropout", "1.5", "dropout"),
        ("--label-smoothing", "1", "smoothing"),
        ("--learning-rate", "-1", "learning rate"),
        ("--batch-tokens", "2", "batches of 2"),
        ("--max-length", "1", "no pair of at most 1 tokens"),
        ("--subword-dropout", "0.1", "bpe"),
        ("--format", "xlsx", "tsv, csv, jsonl, parquet"),
    ],
)
def test_a_choice_that_there_is_not(option: str, value: str, hint: str, words: Path, tmp_path: Path) -> None:
    refused(train(words, tmp_path / "out", option, value), hint)
    assert not (tmp_path / "out").exists()


def test_a_number_that_is_none(words: Path, tmp_path: Path) -> None:
    refused(train(words, tmp_path / "out", "--steps", "many"), "--steps", "--help")


def test_a_metric_needs_something_to_measure(words: Path, tmp_path: Path) -> None:
    refused(train(words, tmp_path / "out", "--hold-out", "0", "--metric", "cer"), "--valid", "--hold-out")


def test_an_extra_that_is_not_installed_is_named_before_training(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    refused(train(words, tmp_path / "out", "--metric", "bleu"), 'pip install "qkv[bleu]"')
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("best", ["3", "0"])
def test_more_outputs_than_beams(best: str, model: Path) -> None:
    refused(qkv("run", model, "cat", "--beams", "2", "--n-best", best), "2 beams", best)


def test_texts_and_a_file_at_once(model: Path, words: Path) -> None:
    refused(qkv("run", model, "cat", "--input", words), "not both")


def test_targets_must_match_texts(model: Path) -> None:
    refused(qkv("look", model, "cat", "dog", "--target", "K AE T"), "2 texts and 1 target")


def test_a_look_at_nothing(model: Path, tmp_path: Path) -> None:
    refused(qkv("look", model, "cat", " ", "--html", tmp_path / "look.html"), "not blank")
    assert list(tmp_path.iterdir()) == []


def test_an_image_that_is_not_called_png(model: Path, tmp_path: Path) -> None:
    refused(qkv("look", model, "cat", "--png", tmp_path / "look.jpg"), "look.png, not", "look.jpg")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("texts", "page"), [(["cat"], "look.png"), (["cat", "dog"], "look-2.png")])
def test_a_page_and_an_image_of_one_name(texts: list[str], page: str, model: Path, tmp_path: Path) -> None:
    refused(qkv("look", model, *texts, "--html", tmp_path / page, "--png", tmp_path / "look.png"), page, "two files")
    assert list(tmp_path.iterdir()) == []


def test_a_training_that_diverges(words: Path, tmp_path: Path) -> None:
    outcome = train(words, tmp_path / "out", "--hold-out", "0", "--learning-rate", "1e30", "--warmup", "1")
    refused(outcome, "diverged", "learning rate")
    assert "Finished" not in outcome.err


# --- a run that is there, or is not -----------------------------------------------------------------------------------


def test_a_run_in_the_way_is_left_alone(model: Path, words: Path) -> None:
    before = (model / "model.safetensors").read_bytes()
    refused(train(words, model), "already holds", "esume", "overwrite")
    assert (model / "model.safetensors").read_bytes() == before


def test_a_run_can_be_overwritten(copied: Path, words: Path) -> None:
    before = (copied / "model.safetensors").read_bytes()
    assert train(words, copied, "--overwrite", "--seed", "1").code == 0
    assert (copied / "model.safetensors").read_bytes() != before


def test_overwriting_waits_until_the_rest_is_right(copied: Path, words: Path) -> None:
    refused(train(words, copied, "--overwrite", "--size", "width=9,heads=2"), "9")
    assert qkv("run", copied, "cat").code == 0


def test_nothing_to_resume(words: Path, tmp_path: Path) -> None:
    refused(train(words, tmp_path / "out", "--resume"), "no run to resume")


def test_resuming_and_overwriting_at_once(copied: Path, words: Path) -> None:
    refused(train(words, copied, "--resume", "--overwrite"), "either resumed or overwritten")
    assert qkv("run", copied, "cat").code == 0


def test_resuming_with_other_settings_or_data(copied: Path, words: Path, tmp_path: Path) -> None:
    refused(train(words, copied, "--resume", "--label-smoothing", "0.2"), "smoothing", "0.1", "0.2")
    other = write_words(tmp_path / "other.tsv", {"a": "AH", "b": "B IY", "c": "S IY"})
    refused(train(other, copied, "--resume"), "data")


def test_a_finished_run_goes_on_with_a_larger_budget(copied: Path, words: Path) -> None:
    outcome = train(words, copied, "--resume", "--steps", "5")
    assert outcome.code == 0
    assert "Resuming after step 3" in outcome.err
    assert "Trained 5 steps" in outcome.out


# --- damage -----------------------------------------------------------------------------------------------------------


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def test_a_truncated_model(copied: Path) -> None:
    cut_short(copied / "model.safetensors")
    refused(qkv("run", copied, "cat"), "model.safetensors", "not a whole safetensors file")


def test_a_missing_model_file(copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    refused(qkv("run", copied, "cat"), "model.safetensors", "missing")


def test_a_folder_in_the_place_of_the_model_file(copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    (copied / "model.safetensors").mkdir()
    refused(qkv("run", copied, "cat"), "model.safetensors", "is a folder")


def test_a_truncated_tokenizer(copied: Path) -> None:
    cut_short(copied / "source_tokenizer.json")
    refused(qkv("run", copied, "cat"), "source_tokenizer.json", "not a whole tokenizer file")


def test_a_missing_tokenizer(copied: Path) -> None:
    (copied / "target_tokenizer.json").unlink()
    refused(qkv("run", copied, "cat"), "target_tokenizer.json")


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_tokenizer_of_another_vocabulary(side: str, copied: Path) -> None:
    TextTokenizer.train("characters", ["abcdefghijklmnopqrstuvwxyz"]).save(copied / f"{side}_tokenizer.json")
    refused(qkv("run", copied, "cat"), side, "30")


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"format": "qkv-9"}, "qkv-1"),
        ({"family": "transfromer"}, "did you mean transformer"),
        ({"family": ["transformer"]}, "family"),
        ({"sizes": 8}, "sizes"),
        ({"extra": 1}, "exactly"),
        ({"sizes.width": 16}, "shape"),
        ({"sizes.width": "8"}, "width"),
        ({"sizes.heads": 0}, "heads"),
        ({"sizes.heads": 3}, "3 heads"),
        ({"sizes.heads": 4}, "was changed after model.safetensors was saved"),
        ({"sizes.widht": 8}, "did you mean width"),
        ({"sizes.encoder_layers": 2}, "lacks the tensor"),
        ({"sizes.vocabulary": 99}, "99"),
    ],
)
def test_an_edited_configuration(change: dict[str, object], hint: str, copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    for key, value in change.items():
        where = config["sizes"] if key.startswith("sizes.") else config
        where[key.removeprefix("sizes.")] = value
    (copied / "config.json").write_text(json.dumps(config))
    refused(qkv("run", copied, "cat"), hint)


def test_a_configuration_that_is_no_json(copied: Path) -> None:
    cut_short(copied / "config.json")
    refused(qkv("run", copied, "cat"), "config.json", "not whole JSON")


def test_the_only_checkpoint_is_truncated(copied: Path, words: Path) -> None:
    cut_short(copied / "checkpoints" / "step-00000003" / "optimizer.safetensors")
    refused(train(words, copied, "--resume", "--steps", "5"), "No checkpoint", "optimizer.safetensors", "checksum")


def test_the_newest_checkpoint_is_truncated_and_an_older_one_is_whole(
    copied: Path, words: Path, tmp_path: Path
) -> None:
    older, newer = (copied / "checkpoints" / f"step-0000000{step}" for step in (3, 5))
    shutil.copytree(older, tmp_path / "older")
    assert train(words, copied, "--resume", "--steps", "5").code == 0
    shutil.copytree(tmp_path / "older", older, dirs_exist_ok=True)
    cut_short(newer / "model.safetensors")
    outcome = train(words, copied, "--resume", "--steps", "6")
    assert outcome.code == 0
    assert "Going on from step-00000003 instead" in outcome.err
    assert "Trained 6 steps" in outcome.out


# --- disks ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 kilobytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    made = mount and subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], capture_output=True, check=False
    )
    if not made or made.returncode:
        pytest.skip("mounting a small file system is not permitted here")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_disk_that_is_full(small_disk: Path, words: Path) -> None:
    outcome = train(words, small_disk / "out", "--steps", "2")
    refused(outcome, "ould not be written" if "ould not" in outcome.complaint else "annot be written")
    assert not list((small_disk / "out").rglob("*.partial"))


def test_a_device_that_runs_out_of_memory(words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("qkv.train.step.Stepper.update", exhausted)
    refused(train(words, tmp_path / "out"), "out of memory", "--batch-tokens")


def test_a_disk_that_fills_up_while_training(copied: Path, words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was saved before stays good, and the run goes on once there is room."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        refused(train(words, copied, "--resume", "--steps", "5"), "No space left on device")
    assert qkv("run", copied, "cat").code == 0
    assert train(words, copied, "--resume", "--steps", "5").code == 0


def test_a_page_on_a_full_disk(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    refused(qkv("look", model, "cat", "--html", tmp_path / "look.html"), "no space left on device")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error", [RuntimeError("can't allocate memory: you tried"), MemoryError(), RuntimeError("CUDA out of memory.")]
)
def test_too_little_memory_is_told(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def verb(*arguments: Any, **keywords: Any) -> None:
        raise error

    monkeypatch.setattr("qkv.cli.main.app_for", lambda _: verb)
    refused(qkv("models"), "not enough memory")


def test_an_error_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def verb(*arguments: Any, **keywords: Any) -> None:
        raise RuntimeError("a mistake in the program")

    monkeypatch.setattr("qkv.cli.main.app_for", lambda _: verb)
    with pytest.raises(RuntimeError, match="mistake"):
        main(["models"])
