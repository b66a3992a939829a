"""`qkv train` for text models: what each task leaves, what can be adapted, and what is refused."""

import json
import re
from pathlib import Path

import pytest
import torch

from qkv.api.loading import load
from qkv.files import read_tensors
from tests.api.corpus import DOCUMENTS, VERSES
from tests.cli.command import Outcome, qkv
from tests.cli.shell import paste
from tests.cli.text_models import save_reader, save_writer

TINY = ["--size", "width=16,hidden=32,heads=2,layers=1", "--length", "32", "--device", "cpu"]
STEPS = ["--steps", "3"]
LABELS = [("it was good", "good"), ("the darkness", "bad"), ("so good", "good"), ("without form", "bad")] * 2
ROWS = {
    "classify": [{"text": f"{text} {number}", "label": label} for number, (text, label) in enumerate(LABELS)],
    "pairs": [
        {"first": f"{text} {number}", "second": "God said", "label": label}
        for number, (text, label) in enumerate(LABELS)
    ],
    "tag": [{"words": f"And God said {number}", "tags": "O B-PER O O"} for number in range(6)],
    "answer": [
        {"question": "who?", "context": f"And God said {number}", "answer": "God" if number else None}
        for number in range(6)
    ],
    "embed": [
        {"first": verse, "second": verse[::2] + VERSES[number - 1], "alike": 1 - number / 9}
        for number, verse in enumerate(VERSES)
    ],
}
ROWS["rate"] = [
    {"text": verse, "other": VERSES[number - 1], "value": number / 4} for number, verse in enumerate(VERSES)
]
ROWS["sentiment"] = ROWS["classify"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "verses.txt").write_text("\n\n".join(DOCUMENTS))
    for task, rows in ROWS.items():
        (folder / f"{task}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_reader(tmp_path_factory.mktemp("models") / "bert", "masked")


def well(outcome: Outcome) -> Outcome:
    assert outcome.code == 0, outcome
    return outcome


def refused(outcome: Outcome, *words: str) -> None:
    assert outcome.code == 2, outcome
    assert outcome.complaint.startswith("qkv: ")
    assert [word for word in words if word not in outcome.complaint] == []


def fine_tune(task: str, data: Path, model: Path, out: Path, *more: str | Path) -> Outcome:
    hold_out = [] if "--hold-out" in more else ["--hold-out", "0.3"]
    own = ["--data", data / f"{task}.jsonl", "--model", model, "--out", out, "--device", "cpu", "--batch-rows", "4"]
    return qkv("train", task, *own, *(STEPS if "--steps" not in more else []), *hold_out, *more)


def next_commands(outcome: Outcome) -> list[str]:
    return re.findall(r"^  (qkv .*)$", outcome.out.partition("Next:\n")[2], flags=re.MULTILINE)


def paste_next(outcome: Outcome, folder: Path) -> None:
    """What is shown as the next thing to type works."""
    found = next_commands(outcome)
    assert found
    for command in found:
        assert paste(command, folder).code == 0, command


# --- running text -----------------------------------------------------------------------------------------------------


def test_a_language_model_is_trained_and_runs(data: Path, tmp_path: Path) -> None:
    own = ["--data", data / "verses.txt", "--blank-lines", "--tokenizer", "bpe:280", *TINY, *STEPS]
    outcome = well(qkv("train", "lm", *own, "--out", tmp_path / "lm"))
    held = next(line for line in outcome.out.splitlines() if line.startswith("Held out:"))
    assert all(name in held for name in ("loss", "perplexity", "bits_per_byte"))
    assert load(tmp_path / "lm").model.longest == 32
    paste_next(outcome, tmp_path)


def chosen(folder: Path) -> dict:
    return json.loads((folder / "run.json").read_text())["settings"]["chosen"]


def test_what_nobody_said_is_chosen_and_told_in_three_lines(data: Path, tmp_path: Path) -> None:
    own = ["--data", data / "verses.txt", "--blank-lines", "--device", "cpu", "--out", tmp_path / "lm"]
    outcome = well(qkv("train", "lm", *own, "--steps", "4"))
    told = outcome.err.splitlines()[:3]
    assert [line.partition(":")[0] for line in told] == ["Model", "Data", "Learning"]
    assert "a new qwen3, 4 layers of width 64" in told[0]
    assert "a byte-pair vocabulary of 512 (--family, --size, --tokenizer)" in told[0]
    assert "about 4 updates" in told[1]
    assert "batches of 16 rows by muon" in told[2]
    assert "that stays until 50% of the run and then falls to 0" in told[2]
    assert load(tmp_path / "lm").model.family == chosen(tmp_path / "lm")["family"] == "qwen3"
    assert "lzma_bits_per_byte" in outcome.out
    assert "so it learned little" in outcome.out  # in four updates


def test_a_run_that_goes_on_keeps_what_was_chosen(data: Path, tmp_path: Path) -> None:
    own = ["--data", data / "verses.txt", "--blank-lines", "--device", "cpu", "--out", tmp_path / "lm"]
    well(qkv("train", "lm", *own, "--minutes", "0.01"))
    before = chosen(tmp_path / "lm")
    well(qkv("train", "lm", *own, "--minutes", "0.02", "--resume"))
    assert chosen(tmp_path / "lm") == before


def test_other_sizes_keep_proportions_and_other_optimizers_their_rates(data: Path, tmp_path: Path) -> None:
    own = ["--data", data / "verses.txt", "--blank-lines", "--device", "cpu", *STEPS]
    well(qkv("train", "lm", *own, "--size", "width=32,layers=1", "--out", tmp_path / "a"))
    sizes = load(tmp_path / "a").model.sizes
    assert (sizes.hidden, sizes.heads, sizes.key_value_heads, sizes.head_width, sizes.layers) == (96, 1, 1, 32, 1)
    outcome = well(qkv("train", "lm", *own, "--optimizer", "adamw", "--attention", "window:8", "--out", tmp_path / "b"))
    assert "by adamw, at a rate of 0.001" in outcome.err
    assert load(tmp_path / "b").model.family == "gpt2"  # which goes with every attention


@pytest.mark.parametrize("family", ["gpt1", "gpt3", "gpt-neo", "llama", "qwen3"])
def test_other_families_learn_to_write(family: str, data: Path, tmp_path: Path) -> None:
    size = "width=16,heads=2,layers=1"
    more = {"gpt3": "head_width=8", "llama": "key_value_heads=1", "qwen3": "key_value_heads=1,head_width=4"}
    size += f",{more[family]},hidden=32" if family in more else ""
    own = ["--data", data / "verses.txt", "--blank-lines", "--tokenizer", "bpe:280", "--family", family, "--size", size]
    outcome = well(qkv("train", "lm", *own, "--length", "32", *STEPS, "--out", tmp_path / "lm"))
    paste_next(outcome, tmp_path)


def test_text_may_come_from_standard_input_or_a_column(data: Path, tmp_path: Path) -> None:
    text = (data / "verses.txt").read_text()
    own = ["--tokenizer", "bpe:280", *TINY, *STEPS]
    well(qkv("train", "lm", "--data", "-", "--blank-lines", *own, "--out", tmp_path / "a", stdin=text))
    column = ["--data", data / "embed.jsonl", "--text", "first", "--valid", data / "embed.jsonl"]
    outcome = well(qkv("train", "lm", *column, *own, "--out", tmp_path / "b"))
    assert "10 documents" in outcome.err


@pytest.mark.parametrize("more", [["--next-sentence"], ["--whole-words", "--hidden", "0.3"], ["--cased"]])
def test_a_masked_model_is_trained_and_runs(more: list[str], data: Path, tmp_path: Path) -> None:
    own = ["--data", data / "verses.txt", "--blank-lines", "--tokenizer", "wordpiece:200", *TINY, *STEPS, *more]
    outcome = well(qkv("train", "mlm", *own, "--out", tmp_path / "mlm"))
    trained = load(tmp_path / "mlm")
    assert trained.model.head_choice.kind == ("pretraining" if "--next-sentence" in more else "masked")
    assert (trained.tokenizer.encode(["God"]) == trained.tokenizer.encode(["god"])) == ("--cased" not in more)
    paste_next(outcome, tmp_path)


def test_a_model_is_trained_further(data: Path, bert: Path, tmp_path: Path) -> None:
    writer = save_writer(tmp_path / "writer")
    own = ["--data", data / "verses.txt", "--blank-lines", "--length", "32", *STEPS]
    well(qkv("train", "lm", *own, "--model", writer, "--out", tmp_path / "further"))
    assert load(tmp_path / "further").tokenizer.names() == load(writer).tokenizer.names()
    well(qkv("train", "lm", *own, "--model", writer, "--lora", "2", "--out", tmp_path / "lora"))
    assert changed(writer, tmp_path / "lora") == {"query", "value"}
    well(qkv("train", "mlm", *own, "--model", bert, "--freeze", "1", "--out", tmp_path / "mlm"))


def changed(before: Path, after: Path) -> set[str]:
    """The last words of the names of tensors that a training changed."""
    old, new = read_tensors(before / "model.safetensors"), read_tensors(after / "model.safetensors")
    names = [name for name in old if name in new and not torch.equal(old[name], new[name])]
    return {name.removesuffix(".weight").rpartition(".")[2] for name in names}


def test_one_long_text_cannot_be_held_out(data: Path, tmp_path: Path) -> None:
    own = ["--data", data / "verses.txt", "--tokenizer", "bpe:280", *TINY, *STEPS, "--out", tmp_path / "out"]
    refused(qkv("train", "lm", *own), "single document", "--blank-lines", "--hold-out 0")
    well(qkv("train", "lm", *own, "--hold-out", "0"))


def test_a_training_goes_on(data: Path, tmp_path: Path) -> None:
    own = ["--data", data / "verses.txt", "--blank-lines", "--tokenizer", "bpe:280", *TINY, "--out", tmp_path / "out"]
    well(qkv("train", "lm", *own, "--steps", "2"))
    refused(qkv("train", "lm", *own, "--steps", "4"), "already holds")
    assert "Resuming after step 2" in well(qkv("train", "lm", *own, "--steps", "4", "--resume")).err
    well(qkv("train", "lm", *own, "--steps", "2", "--overwrite"))


@pytest.mark.parametrize(
    ("task", "options", "hint"),
    [
        ("lm", ["--model", "absent"], "absent"),
        ("lm", ["--model", "BERT"], "no language head"),
        ("lm", ["--model", "BERT", "--size", "desk"], "--model or --size"),
        ("lm", ["--lora", "4"], "--model"),
        ("lm", ["--family", "transformer"], "pairs of texts"),
        ("lm", ["--family", "gtp2"], "did you mean gpt2"),
        ("lm", ["--size", "widht=8"], "did you mean width"),
        ("lm", ["--tokenizer", "pbe"], "bpe"),
        ("lm", ["--learning-rate", "0"], "learning rate"),
        ("lm", ["--precision", "half"], "float32"),
        ("lm", ["--text", "words"], "no column 'words'"),
        ("mlm", ["--hidden", "1.5"], "1.5"),
        ("mlm", ["--cased", "--model", "BERT"], "--cased"),
        ("mlm", ["--model", "BERT", "--next-sentence", "--lora", "2", "--freeze", "1"], "one of the two"),
    ],
)
def test_what_running_text_cannot_be_trained_with(
    task: str, options: list[str], hint: str, data: Path, bert: Path, tmp_path: Path
) -> None:
    given = [str(bert) if option == "BERT" else option for option in options]
    source = data / "embed.jsonl" if "--text" in options else data / "verses.txt"
    refused(qkv("train", task, "--data", source, "--blank-lines", *STEPS, *given, "--out", tmp_path / "out"), hint)
    assert not (tmp_path / "out").exists()


def test_a_corpus_that_is_empty_or_absent(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    refused(qkv("train", "lm", "--data", tmp_path / "empty.txt", "--out", tmp_path / "out"), "no document", "empty.txt")
    refused(qkv("train", "lm", "--data", tmp_path / "absent.txt", "--out", tmp_path / "out"), "no file", "absent.txt")


# --- tasks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "more", "figures"),
    [
        ("classify", ["--metric", "macro_f1", "--metric", "matthews"], ["loss", "accuracy", "macro_f1", "matthews"]),
        ("sentiment", [], ["loss", "accuracy"]),
        ("pairs", ["--metric", "accuracy"], ["loss", "accuracy"]),
        ("tag", ["--metric", "f1"], ["loss", "accuracy", "f1"]),
        ("answer", ["--metric", "f1"], ["loss", "exact_match", "f1"]),
        ("embed", [], ["loss"]),
        ("rate", [], ["loss", "spearman"]),
        ("rate", ["--second", "other", "--metric", "pearson"], ["loss", "pearson"]),
        ("embed", ["--value", "alike"], ["loss", "spearman"]),
    ],
)
def test_every_task_is_learned_and_runs(
    task: str, more: list[str], figures: list[str], data: Path, bert: Path, tmp_path: Path
) -> None:
    outcome = well(fine_tune(task, data, bert, tmp_path / "out", *more))
    held = next(line for line in outcome.out.splitlines() if line.startswith("Held out:"))
    assert [name for name in figures if f" {name} " not in held] == []
    assert "Examples it never saw:" in outcome.out
    paste_next(outcome, tmp_path)


def test_a_table_to_validate_on_and_other_columns(data: Path, bert: Path, tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text("review,stars\nit was good,5\nit was void,1\n")
    (tmp_path / "valid.csv").write_text("review,stars\nso good,5\nno form,1\nodd,3\n")
    own = ["--model", bert, "--data", tmp_path / "reviews.csv", "--valid", tmp_path / "valid.csv", *STEPS]
    outcome = well(qkv("train", "sentiment", *own, "--text", "review", "--label", "stars", "--out", tmp_path / "out"))
    assert "2 examples to train on, 2 to validate on" in outcome.err
    assert "line 4" in outcome.err  # a label that nobody trained on
    assert load(tmp_path / "out").model.head_choice.labels == ("1", "5")


def test_a_decoder_can_be_fine_tuned_too(data: Path, tmp_path: Path) -> None:
    writer = save_writer(tmp_path / "writer")
    for task in ("classify", "embed"):
        paste_next(well(fine_tune(task, data, writer, tmp_path / task)), tmp_path)


def test_parts_of_a_model_stay_as_they_are(data: Path, bert: Path, tmp_path: Path) -> None:
    well(fine_tune("classify", data, bert, tmp_path / "lora", "--lora", "2", "--learning-rate", "0.01"))
    assert changed(bert, tmp_path / "lora") == {"query", "value"}  # the head is new, and not compared
    well(fine_tune("classify", data, bert, tmp_path / "frozen", "--freeze", "1"))
    old, new = (read_tensors(folder / "model.safetensors") for folder in (bert, tmp_path / "frozen"))
    same = {name for name in old if name in new and torch.equal(old[name], new[name])}
    assert {name for name in old if name.startswith(("embed.", "stack.blocks.0."))} <= same
    assert not any(name.startswith("stack.blocks.1.") for name in same)
    well(fine_tune("classify", data, bert, tmp_path / "decay", "--layer-decay", "0.5"))


def test_the_seed_decides_about_a_new_head(data: Path, bert: Path, tmp_path: Path) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        well(fine_tune("classify", data, bert, tmp_path / name, "--seed", seed))
    first, same, other = (read_tensors(tmp_path / name / "model.safetensors") for name in "abc")
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_a_fine_tuning_goes_on(data: Path, bert: Path, tmp_path: Path) -> None:
    well(fine_tune("classify", data, bert, tmp_path / "out", "--lora", "2", "--steps", "2"))
    refused(fine_tune("classify", data, bert, tmp_path / "out"), "already holds")
    more = ["--lora", "2", "--steps", "4", "--resume"]
    assert "Resuming after step 2" in well(fine_tune("classify", data, bert, tmp_path / "out", *more)).err


@pytest.mark.parametrize("task", ["sentiment", "pairs", "tag", "answer"])
def test_a_student_learns_from_a_teacher(task: str, data: Path, bert: Path, tmp_path: Path) -> None:
    well(fine_tune(task, data, bert, tmp_path / "teacher"))
    own = ["--data", data / f"{task}.jsonl", "--teacher", tmp_path / "teacher", *STEPS, "--hold-out", "0.3"]
    more = ["--student-layers", "1", "--match-states", "1", "--match-attention", "0.5"]
    outcome = well(qkv("train", task, *own, *more, "--out", tmp_path / "student"))
    held = next(line for line in outcome.out.splitlines() if line.startswith("Held out:"))
    assert [name for name in ("soft", "match_1", "match_2", "accuracy") if f" {name} " not in held] == []
    assert load(tmp_path / "student").model.sizes.layers == 1
    paste_next(outcome, tmp_path)
    well(qkv("train", task, *own, "--model", bert, "--soft", "1", "--out", tmp_path / "other"))


def test_a_teacher_labels_texts(data: Path, bert: Path, tmp_path: Path) -> None:
    well(fine_tune("classify", data, bert, tmp_path / "teacher"))
    own = ["--data", data / "classify.jsonl", "--teacher", tmp_path / "teacher", *STEPS, "--student-layers", "1"]
    (data / "unlabelled.tsv").write_text("text\n" + "\n".join(VERSES))
    unlabelled = ["--unlabelled", data / "unlabelled.tsv", "--out", tmp_path / "student"]
    outcome = well(qkv("train", "classify", *own, *unlabelled, "--hold-out", "0"))
    assert f"labels {len(VERSES)} of {len(VERSES)} texts" in outcome.err
    assert f"{len(VERSES) + len(LABELS)} examples to train on" in outcome.err
    own = ["--data", data / "classify.jsonl", "--model", bert, *STEPS]
    refused(qkv("train", "classify", *own, *unlabelled), "--teacher")
    refused(qkv("train", "classify", "--data", data / "classify.jsonl", *STEPS), "--model")
    refused(qkv("train", "classify", *own, "--soft", "1"), "--soft is about learning from a teacher")
    both = ["--teacher", tmp_path / "teacher", "--student-layers", "1", "--out", tmp_path / "both"]
    refused(qkv("train", "classify", *own, *both), "one of the two")


def test_a_run_has_a_folder_of_the_tasks_name(
    data: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = ["--model", bert, "--data", data / "sentiment.jsonl", *STEPS, "--hold-out", "0"]
    assert "runs/sentiment holds" in well(qkv("train", "sentiment", *own)).out
    refused(qkv("train", "sentiment", *own), "runs/sentiment already holds", "--resume", "--overwrite", "--out")
    refused(
        qkv("train", "sentiment", *own, "--learning-rate", "0.5", "--resume"),
        "with other settings: the learning rate (it was 3e-05, now 0.5). Only the budget",
    )
    well(qkv("train", "sentiment", *own, "--overwrite"))


@pytest.mark.parametrize(
    ("task", "options", "hint"),
    [
        ("classify", ["--label", "lable"], "no column 'lable'"),
        ("classify", ["--metric", "f1"], "macro_f1"),
        ("classify", ["--metric", "accuracy", "--hold-out", "0"], "--valid"),
        ("classify", ["--lora", "2", "--freeze", "1"], "one of the two"),
        ("classify", ["--freeze", "9"], "9 layers"),
        ("classify", ["--layer-decay", "2"], "decay"),
        ("classify", ["--length", "99"], "99"),
        ("classify", ["--hold-out", "1.5"], "between 0 and 1"),
        ("classify", ["--lora", "0"], "See qkv train classify --help"),
        ("classify", ["--text", "label"], "different"),
        ("pairs", ["--second", "first"], "different"),
        ("tag", ["--tags", "text"], "no column 'text'"),
        ("tag", ["--metric", "bleu"], "no metric called bleu"),
        ("answer", ["--context", "text"], "no column 'text'"),
        ("answer", ["--answer", "nothing"], "has an answer"),
        ("embed", ["--metric", "spearman"], "--value"),
        ("embed", ["--value", "alike", "--unlike", "second"], "--value or --unlike"),
        ("embed", ["--value", "first"], "different"),
        ("embed", ["--pooling", "middle"], "mean, first, last"),
    ],
)
def test_what_a_task_cannot_be_trained_with(
    task: str, options: list[str], hint: str, data: Path, bert: Path, tmp_path: Path
) -> None:
    refused(fine_tune(task, data, bert, tmp_path / "out", *options), hint)
    assert not (tmp_path / "out").exists()


def test_a_task_needs_a_model_that_reads(data: Path, model: Path, tmp_path: Path) -> None:
    refused(fine_tune("classify", data, model, tmp_path / "out"), "turns one text into another")
    refused(fine_tune("classify", data, tmp_path / "absent", tmp_path / "out"), "absent")
    refused(qkv("train", "classify", "--data", data / "classify.jsonl", "--out", tmp_path / "out"), "--model")


def test_data_of_a_task_that_is_empty_or_of_one_label(bert: Path, tmp_path: Path) -> None:
    for content, hint in (
        ("", "no rows"),
        ("text,label\n", "no rows"),
        ("text,label\na,b\nc,b\n", "two different labels"),
    ):
        (tmp_path / "classify.csv").write_text(content)
        own = ["--data", tmp_path / "classify.csv", "--model", bert, "--out", tmp_path / "out"]
        refused(qkv("train", "sentiment", *own), hint)
