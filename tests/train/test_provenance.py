"""A run says where it came from, in JSON."""

import json
from pathlib import Path

import pytest
import torch

from qkv.train.optimizers import adamw
from qkv.train.origin import Origin, started_by
from qkv.train.provenance import describe, fingerprint_of_weights, provenance, source_fingerprint
from qkv.train.schedules import Cosine
from tests.train.tiny import TinyModel


def test_a_session_is_described_in_json() -> None:
    session = json.loads(json.dumps(provenance(torch.device("cpu"))))
    assert session["versions"]["torch"] == torch.__version__
    assert session["hardware"]["device"]
    assert session["command"]


def test_a_session_says_who_started_it() -> None:
    assert provenance(torch.device("cpu"))["by"] == "python"
    with started_by(Origin(command=["qkv", "train", "lm"], repeat="qkv train lm --config x")):
        session = provenance(torch.device("cpu"))
    assert (session["by"], session["command"]) == ("qkv", ["qkv", "train", "lm"])
    assert session["repeat"] == "qkv train lm --config x"


def test_weights_at_the_start_have_a_name() -> None:
    model, other = TinyModel(seed=1), TinyModel(seed=1)
    name = provenance(torch.device("cpu"), fingerprint_of_weights(model))["weights_at_start"]
    assert name == fingerprint_of_weights(other)
    with torch.no_grad():
        other.mix.weight[0, 0] += 1e-6
    assert name != fingerprint_of_weights(other)
    assert "weights_at_start" not in provenance(torch.device("cpu"))


def test_a_session_names_the_source_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was changed in it since a commit, and wherever it was installed from."""
    package = tmp_path / "qkv"
    (package / "train").mkdir(parents=True)
    (package / "train" / "provenance.py").write_text("one")
    monkeypatch.setattr("qkv.train.provenance.__file__", str(package / "train" / "provenance.py"))
    first = source_fingerprint.__wrapped__()
    assert source_fingerprint.__wrapped__() == first
    (package / "more.py").write_text("")
    assert source_fingerprint.__wrapped__() != first
    assert len(provenance(torch.device("cpu"))["source"]) == 16


def test_parts_are_described_well_enough_to_tell_them_apart() -> None:
    model = TinyModel()
    optimizer = adamw(model, learning_rate=0.5, weight_decay=0.3)
    before = json.loads(json.dumps(describe(optimizer)))
    assert before["name"] == "AdamW"
    assert [group["weight_decay"] for group in before["groups"]] == [0.3, 0.0]
    for group in optimizer.param_groups:  # what the schedule does is no difference
        group["initial_lr"], group["lr"] = group["lr"], 0.001
    assert json.loads(json.dumps(describe(optimizer))) == before
    assert describe(adamw(model, learning_rate=0.4)) != before
    assert describe(Cosine(warmup=3)) == {"name": "Cosine", "warmup": 3, "floor": 0.0}
    assert describe(describe) == {"name": "describe"}
