"""`qkv train … --attention`: new and loaded models, a teacher to recover from, and what is refused."""

import json
from pathlib import Path

import pytest

from qkv.files import read_json
from qkv.models.attention_choice import KINDS
from tests.api.corpus import DOCUMENTS, VERSES
from tests.cli.command import Outcome, qkv
from tests.cli.test_train_text import refused, well
from tests.cli.text_models import save_reader, save_writer

HOW = ["--length", "32", "--steps", "2", "--device", "cpu", "--batch-rows", "4", "--hold-out", "0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, a table, a language model and a masked one."""
    folder = tmp_path_factory.mktemp("attention")
    (folder / "verses.txt").write_text("\n\n".join(DOCUMENTS))
    rows = [{"text": verse, "label": "light" if "light" in verse else "other"} for verse in VERSES]
    (folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    save_writer(folder / "gpt")
    save_reader(folder / "bert", "masked")
    return folder


def train(task: str, folder: Path, out: Path, *more: str | Path) -> Outcome:
    return qkv("train", task, "--data", folder / "verses.txt", "--blank-lines", "--out", out, *HOW, *more)


def test_all_kinds_are_listed() -> None:
    listed = well(qkv("models", "--attention")).out
    assert [line.split()[0] for line in listed.splitlines()] == [kind.form for kind in KINDS.values()]
    assert json.loads(well(qkv("models", "--attention", "--json")).out).keys() == {kind.form for kind in KINDS.values()}
    refused(qkv("models", "gpt2", "--attention"), "leave out gpt2")


@pytest.mark.parametrize("spelled", ["window:8", "window:8+global:2", "performer:16", "rfa:16", "lsh:2:16"])
def test_a_language_model_is_swapped_taught_and_run(spelled: str, folder: Path, tmp_path: Path) -> None:
    swap = ["--model", folder / "gpt", "--attention", spelled, "--teacher", folder / "gpt"]
    outcome = well(train("lm", folder, tmp_path / "out", *swap, "--match-states", "1"))
    assert ("keys are gone" in outcome.err) == spelled.startswith("lsh")
    assert ("read as one stream" in outcome.err) == (spelled not in ("window:8", "lsh:2:16"))
    assert read_json(tmp_path / "out" / "config.json")["attention"] == spelled
    assert "attention" not in read_json(folder / "gpt" / "config.json")
    assert len(well(qkv("run", tmp_path / "out", "And God", "In", "--max-tokens", "4")).out.splitlines()) >= 2
    refused(qkv("export", tmp_path / "out", tmp_path / "published"), spelled, "folder of qkv's own")
    assert not (tmp_path / "published").exists()
    further = ["--model", tmp_path / "out", "--lora", "2"]
    well(train("lm", folder, tmp_path / "further", *further))
    assert read_json(tmp_path / "further" / "config.json")["attention"] == spelled


def test_new_models_have_it_too(folder: Path, tmp_path: Path) -> None:
    tiny = "width=16,hidden=32,heads=2,layers=1"
    for task, family, spelled in (
        ("lm", "llama", "rfa:16"),
        ("lm", "gpt2", "strided:8"),
        ("mlm", "bert", "linformer:8"),
    ):
        more = ["--family", family, "--attention", spelled, "--size", tiny, "--overwrite"]
        well(train(task, folder, tmp_path, *more, "--tokenizer", "wordpiece:200" if task == "mlm" else "bpe:300"))
        config = read_json(tmp_path / "config.json")
        assert (config["family"], config["attention"]) == (family, spelled)
    t5 = ["--size", "width=16,key_width=8,hidden=32,heads=2,layers=1", "--tokenizer", "bpe:300"]
    well(train("t5", folder, tmp_path, "--attention", "window:8", *t5, "--overwrite"))
    assert read_json(tmp_path / "config.json")["attention"] == "window:8"


def test_a_student_has_fewer_layers_of_a_teacher_and_another_attention(folder: Path, tmp_path: Path) -> None:
    taught = ["--teacher", folder / "gpt", "--student-layers", "1", "--attention", "window:8"]
    well(train("lm", folder, tmp_path / "gpt", *taught))
    config = read_json(tmp_path / "gpt" / "config.json")
    assert (config["sizes"]["layers"], config["attention"]) == (1, "window:8")
    well(train("mlm", folder, tmp_path / "bert", "--teacher", folder / "bert", "--student-layers", "1"))
    assert read_json(tmp_path / "bert" / "config.json")["sizes"]["layers"] == 1


def test_a_task_is_learned_with_another_attention(folder: Path, tmp_path: Path) -> None:
    for spelled in ("window:8", "linformer:8", "big_bird:2:1"):
        own = ["--data", folder / "labels.jsonl", "--model", folder / "bert", "--out", tmp_path, "--overwrite"]
        well(qkv("train", "classify", *own, *HOW, "--attention", spelled))
        assert read_json(tmp_path / "config.json")["attention"] == spelled
        assert well(qkv("run", tmp_path, "let there be light")).out.strip()


@pytest.mark.parametrize(
    ("task", "more", "words"),
    [
        ("lm", ["--attention", "windw:3"], ["did you mean window?"]),
        ("lm", ["--attention", "performer"], ["performer:FEATURES"]),
        ("lm", ["--attention", "linformer:8"], ["linformer:8", "looks both ways"]),
        ("lm", ["--attention", "window:8", "--family", "reformer"], ["of its own kind"]),
        ("lm", ["--teacher", "bert"], ["has a masked head"]),
        ("lm", ["--soft", "0.9"], ["--teacher"]),
        ("lm", ["--teacher", "gpt", "--student-layers", "1", "--size", "width=8"], ["--student-layers or --size"]),
        ("mlm", ["--attention", "lsh:2"], ["lsh:ROUNDS:CHUNK"]),
        ("t5", ["--attention", "performer:8"], ["adds a bias to every score"]),
    ],
)
def test_what_cannot_be_is_told_in_one_sentence(
    task: str, more: list[str], words: list[str], folder: Path, tmp_path: Path
) -> None:
    here = [str(folder / each) if each in ("bert", "gpt") else each for each in more]
    refused(train(task, folder, tmp_path / "out", *here), *words)
    assert not (tmp_path / "out" / "config.json").exists()
