"""`qkv cost`: a table or JSON, a device measured and remembered, and one sentence for what cannot be priced."""

import json
from pathlib import Path

import pytest
import torch

from qkv.train.cost import measure
from tests.cli.command import Outcome, qkv

SMALL = ["--size", "width=32,hidden=64,heads=2,layers=1", "--rows", "2", "--length", "16"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))


def priced(*more: str) -> Outcome:
    return qkv("cost", "--family", "gpt2", *SMALL, *more)


def test_a_table_without_times_says_how_to_measure() -> None:
    told = priced("--device", "cpu")
    assert told.code == 0, told.err
    assert "parameters" in told.out
    assert "memory at its peak" in told.out
    assert "time of a step" not in told.out
    assert "qkv cost --measure --device cpu" in told.out


def test_a_measured_device_is_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measure, "ON_CPU", measure.TINY)
    measured = qkv("cost", "--measure", "--device", "cpu")
    assert measured.code == 0, measured.err
    assert list((tmp_path / "cache").rglob("*.json"))
    told = priced("--device", "cpu", "--steps", "50")
    assert "time of a step" in told.out
    assert "time of 50 steps" in told.out
    values = json.loads(priced("--device", "cpu", "--steps", "50", "--json").out)
    assert values["total_seconds"] == pytest.approx(50 * values["seconds"])
    assert values["memory"]["total"] == sum(value for name, value in values["memory"].items() if name != "total")


def test_sizes_are_spelled_as_for_a_training() -> None:
    told = json.loads(qkv("cost", "--family", "gpt2", "--size", "base,layers=1", "--rows", "1", "--length", "2048",
                          "--device", "cuda", "--precision", "bfloat16", "--json").out)  # fmt: skip
    d, vocabulary, positions = 768, 50257, 2048
    block = 12 * d * d + 13 * d
    assert told["parameters"] == (vocabulary + positions) * d + block + 2 * d
    fewer = json.loads(priced("--vocabulary", "100", "--device", "cuda", "--json").out)
    more = json.loads(priced("--vocabulary", "200", "--device", "cuda", "--json").out)
    assert more["parameters"] - fewer["parameters"] == 100 * 32


def test_what_an_optimizer_keeps() -> None:
    kept = {
        name: json.loads(priced("--device", "cpu", "--optimizer", name, "--json").out)["memory"]["optimizer"]
        for name in ("adamw", "muon", "lion", "adafactor")
    }
    assert kept["lion"] == pytest.approx(kept["adamw"] / 2, rel=0.01)
    assert kept["adafactor"] < kept["lion"] / 10
    assert kept["lion"] < kept["muon"] < kept["adamw"]
    refused = priced("--optimizer", "muon", "--forward-only")
    assert refused.code == 2
    assert "--forward-only learns nothing" in refused.complaint


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Say what to price"),
        (["--family", "gpt2", "--model", "somewhere"], "Say what to price"),
        (["--family", "gpt9"], "no family called gpt9"),
        (["--family", "gpt2", "--size", "enormous"], "no size called enormous"),
        (["--family", "gpt2", "--device", "abacus"], "no measured device called abacus"),
        (["--family", "gpt2", "--precision", "float8"], "precision"),
        (["--family", "gpt2", "--attention", "telepathy:3"], "no attention called"),
        (["--family", "gpt2", "--head", "spans"], "What the head spans takes cannot be told"),
        (["--family", "whisper"], "cannot be told"),
        (["--model", "somewhere", "--size", "base"], "is what it is"),
    ],
)
def test_what_cannot_be_priced_is_one_sentence(arguments: list[str], said: str) -> None:
    told = qkv("cost", *arguments)
    assert told.code == 2
    assert said in told.err
    assert len(told.err.strip().splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU that must not be there")
def test_a_device_that_is_not_there_cannot_be_measured() -> None:
    told = qkv("cost", "--measure", "--device", "cuda")
    assert told.code == 2
    assert "this machine offers none" in told.err
