"""`qkv run` with a translator: sampling beside beams, by the names that language models have."""

import json
from pathlib import Path

import pytest

from qkv.api.loading import load
from qkv.generate.decode import LengthLimit
from qkv.generate.shape import Temperature, TopP
from tests.api.translators import t5_folder
from tests.cli.command import qkv
from tests.cli.test_train_text import refused, well


def test_outputs_are_drawn_as_they_are_in_python(model: Path) -> None:
    options = ["--temperature", "2", "--top-p", "0.9", "--seed", "3", "--samples", "2", "--max-tokens", "5"]
    lines = well(qkv("run", model, "cat", "dog", *options)).out.splitlines()
    found = load(model, "cpu").sample(
        ["cat", "dog"], samples=2, seed=3, shapers=[Temperature(2.0), TopP(0.9)], limit=LengthLimit(0, 5)
    )
    expected = [(str(number), one.text) for number, row in enumerate(found, 1) for one in row]
    assert [(line.split("\t")[0], line.split("\t")[2]) for line in lines] == expected
    assert len(set(expected)) > 2
    (said,) = well(qkv("run", model, "cat", "--json", *options)).out.splitlines()
    assert [one["text"] for one in json.loads(said)["outputs"]] == [one.text for one in found[0]]


def test_a_single_sample_is_a_line_and_a_seed_repeats_it(model: Path) -> None:
    first, again, other = (well(qkv("run", model, "cat", "--top-k", "9", "--seed", seed)).out for seed in "112")
    assert first == again
    assert first != other
    assert "\t" not in first
    assert well(qkv("run", model, "cat", "--top-k", "1")).out == well(qkv("run", model, "cat", "--beams", "1")).out


def test_limits_and_penalties_serve_beams_too(model: Path) -> None:
    (said,) = well(qkv("run", model, "cat", "--max-tokens", "4", "--no-repeat", "1", "--json")).out.splitlines()
    written = json.loads(said)["outputs"][0]["text"].split()
    assert len(written) <= 4
    assert len(set(written)) == len(written)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--beams", "2", "--temperature", "1"], "--beams and --temperature are two ways"),
        (["--n-best", "2", "--seed", "1"], "--n-best and --seed are two ways"),
        (["--temperature", "0"], "above 0"),
        (["--top-p", "2"], "Top-p"),
        (["--samples", "0"], "1 output"),
        (["--stream"], "--stream"),
    ],
)
def test_what_cannot_be_asked_of_a_translator(options: list[str], hint: str, model: Path) -> None:
    refused(qkv("run", model, "cat", *options), hint)


def test_a_t5_is_asked_to_fill_gaps(tmp_path: Path) -> None:
    folder = t5_folder(tmp_path / "t5")
    text = "the <extra_id_0> sat on the mat"
    drawn = ["--seed", "1", "--samples", "20", "--temperature", "1.5"]
    said = well(qkv("run", folder, text, *drawn)).out
    assert "<extra_id_" in said  # a hundred of its tokens are sentinels, and none of its weights was trained
    assert "<extra_id_" not in well(qkv("run", folder, "the cat sat on the mat", *drawn)).out
    page = tmp_path / "look.html"
    well(qkv("look", folder, text, "--html", page))
    assert "extra_id_0" in page.read_text("utf-8")
