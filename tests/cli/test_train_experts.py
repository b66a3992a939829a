"""Models with experts from the command line: trained, used, exported."""

import json
from pathlib import Path

import pytest

from qkv.api.loading import load
from tests.api.corpus import DOCUMENTS
from tests.cli.command import qkv

COMMON = ["--blank-lines", "--tokenizer", "bpe:300", "--length", "32", "--steps", "2", "--device", "cpu"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "verses.txt"
    file.write_text("\n\n".join(DOCUMENTS))
    return file


@pytest.mark.parametrize(
    ("task", "choice"),
    [
        ("lm", ["--size", "width=16,hidden=32,heads=2,layers=2,experts=3"]),
        ("lm", ["--family", "mixtral", "--size", "width=16,hidden=32,heads=2,key_value_heads=1,layers=1,experts=3"]),
        (
            "t5",
            ["--family", "switch", "--size", "width=16,key_width=8,hidden=32,heads=2,layers=2,experts=3,capacity=9"],
        ),
    ],
    ids=["gpt2", "mixtral", "switch"],
)
def test_a_model_with_experts_is_trained_and_its_use_told(
    texts: Path, tmp_path: Path, task: str, choice: list[str]
) -> None:
    done = qkv("train", task, "--data", texts, *COMMON, *choice, "--hold-out", "0.3", "--out", tmp_path / "run")
    assert done.code == 0, done.err
    for figure in ("balance", "busiest_expert", "dropped", "router_z"):
        assert f"{figure} " in done.out + done.err
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    told = next(line["experts"] for line in lines if line["kind"] == "train")
    assert told.keys() == {"balance", "router_z", "dropped", "busiest_expert"}
    assert 1 / 3 <= told["busiest_expert"] <= 1
    assert load(tmp_path / "run", device="cpu").model.sizes.experts == 3
    exported = qkv("export", tmp_path / "run", tmp_path / "published")
    if "--family" in choice:
        assert exported.code == 0, exported.err
        assert load(tmp_path / "published", device="cpu").model.sizes.experts == 3
    else:
        assert exported.code == 2
        assert "None of the published forms of the family gpt2" in exported.complaint


def test_their_losses_can_be_weighted(texts: Path, tmp_path: Path) -> None:
    size = ["--size", "width=16,hidden=32,heads=2,layers=2,experts=3"]
    done = qkv("train", "lm", "--data", texts, *COMMON, *size, "--balance", "0.5", "--out", tmp_path / "run")
    assert done.code == 0, done.err
    said = (tmp_path / "run" / "run.json").read_text()
    assert '"balance": 0.5' in said
    assert '"router_z": 0.001' in said


@pytest.mark.parametrize("task", ["lm", "t5"])
def test_what_has_no_experts_has_no_weights_for_them(texts: Path, tmp_path: Path, task: str) -> None:
    done = qkv("train", task, "--data", texts, *COMMON, "--router-z", "0.1", "--out", tmp_path / "run")
    assert done.code == 2
    assert "This model has no experts" in done.complaint
    done = qkv("train", task, "--data", texts, *COMMON, "--balance", "-1", "--out", tmp_path / "run")
    assert done.code == 2
    assert "0 or more" in done.complaint
