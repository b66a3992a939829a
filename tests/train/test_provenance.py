"""A run says where it came from, in JSON."""

import json
from pathlib import Path

import torch

from qkv.train.optimizers import adamw
from qkv.train.provenance import describe, git_commit, provenance
from qkv.train.schedules import Cosine
from tests.train.tiny import TinyModel


def test_a_session_is_described_in_json() -> None:
    session = json.loads(json.dumps(provenance(torch.device("cpu"))))
    assert session["versions"]["torch"] == torch.__version__
    assert session["hardware"]["device"]
    assert session["command"]


def test_no_commit_outside_a_repository(tmp_path: Path) -> None:
    assert git_commit(tmp_path) is None


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
