"""What each verb does when all is well."""

import json
from pathlib import Path

import pytest

from tests.cli.command import WORDS, Outcome, qkv, train


def well(outcome: Outcome) -> Outcome:
    assert outcome.code == 0, outcome
    return outcome


# --- train ------------------------------------------------------------------------------------------------------------


def test_a_training_ends_with_figures_examples_and_the_next_commands(words: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = well(train(words, out, "--metric", "per", "--metric", "ser"))
    held = [line for line in outcome.out.splitlines() if line.startswith("Held out:")]
    assert [name in held[0] for name in ("loss", "perplexity", "per", "ser")] == [True] * 4
    assert "Examples it never saw:" in outcome.out
    assert f"qkv run {out}" in outcome.out
    assert f"qkv look {out}" in outcome.out
    assert {"config.json", "model.safetensors", "run.json", "metrics.jsonl", "source_tokenizer.json"} <= {
        file.name for file in out.iterdir()
    }


@pytest.mark.parametrize("format", ["tsv", "csv", "jsonl"])
def test_data_may_come_from_standard_input(format: str, tmp_path: Path) -> None:
    if format == "jsonl":
        content = "".join(json.dumps({"word": word, "phonemes": sounds}) + "\n" for word, sounds in WORDS.items())
    else:
        tab = {"tsv": "\t", "csv": ","}[format]
        content = f"word{tab}phonemes\n" + "".join(f"{word}{tab}{sounds}\n" for word, sounds in WORDS.items())
    well(train("-", tmp_path / "out", "--format", format, stdin=content))


def test_data_may_be_a_folder_of_files_without_header_lines(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for word, sounds in WORDS.items():
        (folder / f"{word}.tsv").write_text(f"{word}\t{sounds}\n")
    outcome = well(train(folder, tmp_path / "out", "--names", "word,phonemes"))
    assert "4 pairs to train on, 2 to validate on" in outcome.err


def test_validation_data_may_be_a_file_or_nothing(words: Path, tmp_path: Path) -> None:
    outcome = well(train(words, tmp_path / "given", "--valid", words))
    assert "6 pairs to train on, 6 to validate on" in outcome.err
    outcome = well(train(words, tmp_path / "none", "--hold-out", "0"))
    assert "6 pairs to train on, 0 to validate on" in outcome.err
    assert "Examples it was trained on:" in outcome.out
    assert "Held out" not in outcome.out


@pytest.mark.parametrize("family", ["transformer", "transformer-admin", "transformer-deepnorm", "rnn"])
def test_every_family_can_be_trained(family: str, words: Path, tmp_path: Path) -> None:
    size = "embedding=8,width=8,alignment=8,maxout=8" if family == "rnn" else "width=8,hidden=16,heads=2,layers=1"
    well(train(words, tmp_path / "out", "--family", family, "--size", size))
    well(qkv("run", tmp_path / "out", "cat"))


def test_marian_shares_one_vocabulary(words: Path, tmp_path: Path) -> None:
    columns = ["--data", words, "--source", "word", "--target", "phonemes"]
    size = ["--family", "marian", "--size", "width=8,hidden=16,heads=2,layers=1", "--tokenizer", "characters"]
    well(qkv("train", "text-to-text", *columns, *size, "--steps", "2", "--out", tmp_path / "out"))
    assert (tmp_path / "out" / "tokenizer.json").exists()
    well(qkv("look", tmp_path / "out", "cat", "--html", tmp_path / "look.html"))


# --- run --------------------------------------------------------------------------------------------------------------


def test_outputs_come_one_a_line_in_order_however_they_are_asked_for(model: Path, words: Path, tmp_path: Path) -> None:
    texts = list(WORDS)
    given = well(qkv("run", model, *texts))
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    assert given.out.count("\n") == len(texts)
    for outcome in (
        qkv("run", model, stdin="\n".join(texts) + "\n"),
        qkv("run", model, "--input", tmp_path / "texts.txt"),
        qkv("run", model, "--input", words, "--source", "word"),
        qkv("run", model, "--input", "-", "--source", "word", "--format", "tsv", stdin=words.read_bytes()),
    ):
        assert well(outcome).out == given.out
    one_by_one = [well(qkv("run", model, text)).out for text in reversed(texts)]
    assert "".join(reversed(one_by_one)) == given.out


def test_a_blank_line_is_answered_by_a_blank_line(model: Path) -> None:
    cat, blank, dog = well(qkv("run", model, stdin="cat\n \ndog\n")).out.splitlines()
    assert blank == ""
    assert well(qkv("run", model, "cat", "dog")).out.splitlines() == [cat, dog]
    assert well(qkv("run", model, stdin="\n\n")).out == "\n\n"


def test_a_table_of_inputs_may_have_no_header_line(model: Path, tmp_path: Path) -> None:
    (tmp_path / "words.tsv").write_text("1\tcat\n2\tdog\n")
    named = qkv("run", model, "--input", tmp_path / "words.tsv", "--names", "number, word", "--source", "word")
    assert well(named).out == well(qkv("run", model, "cat", "dog")).out


def test_several_outputs_are_numbered_and_ranked(model: Path) -> None:
    lines = [line.split("\t") for line in well(qkv("run", model, "cat", "dog", "--n-best", "3")).out.splitlines()]
    assert [line[0] for line in lines] == ["1"] * 3 + ["2"] * 3
    scores = [float(line[1]) for line in lines[:3]]
    assert scores == sorted(scores, reverse=True)


def test_json_says_all(model: Path) -> None:
    outcome = well(qkv("run", model, "cat", "dog", "--json", "--n-best", "2"))
    first, second = (json.loads(line) for line in outcome.out.splitlines())
    assert (first["input"], second["input"]) == ("cat", "dog")
    assert [set(output) for output in first["outputs"]] == [{"text", "score", "ended"}] * 2


# --- look -------------------------------------------------------------------------------------------------------------


def test_a_look_is_a_page_and_images(model: Path, tmp_path: Path) -> None:
    page, image = tmp_path / "pages" / "look.html", tmp_path / "look.png"
    outcome = well(qkv("look", model, "cat", "dog", "--html", page, "--png", image))
    assert [line.split("\t")[0] for line in outcome.out.splitlines()] == ["cat", "dog"]
    assert "cat" in page.read_text("utf-8")
    for number in (1, 2):
        assert (tmp_path / f"look-{number}.png").read_bytes().startswith(b"\x89PNG")


def test_the_layers_of_a_run_are_drawn(words: Path, model: Path, tmp_path: Path) -> None:
    well(train(words, tmp_path / "out", "--family", "transformer-rezero", "--gradient-norms"))
    outcome = well(qkv("layers", tmp_path / "out", "cat", "--out", tmp_path / "shown"))
    assert str(tmp_path / "shown" / "page.html") in outcome.out
    assert {"page.html", "gradient-norms-decoder.png", "output-change.png"} <= {
        file.name for file in (tmp_path / "shown").iterdir()
    }
    untold = qkv("layers", model)
    assert (untold.code, "--gradient-norms" in untold.complaint) == (2, True)


def test_a_look_at_what_the_model_should_have_written(model: Path, tmp_path: Path) -> None:
    outcome = well(qkv("look", model, "cat", "--target", "K AE T", "--png", tmp_path / "look.png"))
    assert outcome.out == "cat\tK AE T\n"
    assert [file.name for file in tmp_path.iterdir()] == ["look.png"]


def test_a_look_without_a_name_is_look_html(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "look.html" in well(qkv("look", model, "cat")).err
    assert (tmp_path / "look.html").exists()


# --- models -----------------------------------------------------------------------------------------------------------


def test_the_models_are_listed_with_their_parameters() -> None:
    found = json.loads(well(qkv("models", "--json")).out)
    listed = well(qkv("models")).out
    assert {"transformer", "transformer-prenorm", "marian", "rnn"} <= {each["family"] for each in found}
    for each in found:
        assert each["family"] in listed
        assert f"{each['parameters']:,}" in listed


def test_one_family_in_detail() -> None:
    shown = well(qkv("models", "transformer")).out
    assert "d_model" not in shown
    assert [line.split()[1:] for line in shown.splitlines() if line.startswith("width")] == [["256", "512", "1,024"]]


def test_an_unknown_family_is_answered_with_the_nearest() -> None:
    outcome = qkv("models", "transfromer")
    assert outcome.code == 2
    assert "did you mean transformer" in outcome.complaint
