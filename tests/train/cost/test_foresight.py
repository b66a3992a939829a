"""A run beside what was foretold of it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.train.cost import foresight
from qkv.train.cost.foresight import beside, foreseen
from qkv.train.cost.measure import TINY, measure_device
from qkv.train.objectives import SequenceToSequenceLoss
from qkv.train.optimizers import adamw
from qkv.train.settings import TrainSettings
from tests.train.tiny import TinyModel, make_batch, train_tiny

CPU = torch.device("cpu")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = measure_device(CPU, TINY)
    monkeypatch.setattr(foresight, "find_profile", lambda device: profile)


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_keeps_what_was_foretold_and_what_came(
    measured: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as unmeasured:
        unmeasured.setattr(foresight, "find_profile", lambda device: None)
        without = train_tiny(tmp_path / "without", steps=6, log_every=2)
    result = train_tiny(tmp_path / "run", steps=6, log_every=2)
    found = records(tmp_path / "run")
    assert found[0]["kind"] == "prediction"
    assert found[0]["seconds"] > 0
    assert found[0]["parameters"] == sum(parameter.numel() for parameter in result[1].parameters())
    final = found[-1]
    assert final["step_seconds"] > 0
    assert final["peak_memory"] > 0
    for one, other in zip(without[1].parameters(), result[1].parameters(), strict=True):
        assert torch.equal(one, other)  # to foretell changes nothing


def test_without_a_measured_device_nothing_is_foretold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(foresight, "find_profile", lambda device: None)
    train_tiny(tmp_path / "run", steps=2)
    assert all(record["kind"] != "prediction" for record in records(tmp_path / "run"))


def test_what_cannot_be_foretold_stops_nobody(measured: None) -> None:
    def looks(model: Any, batch: Any) -> Any:
        loss = SequenceToSequenceLoss()(model, batch)
        assert float(loss.total) > 0
        return loss

    model = TinyModel()
    settings = TrainSettings(steps=1, device="cpu")
    assert foreseen(model, looks, adamw(model), make_batch(0), settings, CPU) is None
    assert foreseen(model, SequenceToSequenceLoss(), adamw(model), make_batch(0), settings, CPU) is not None


def test_the_sentence() -> None:
    foretold = {"seconds": 0.0123, "memory": {"total": 3 * 2**29}}
    assert beside(foretold, 0.013, 2**30, on_gpu=True) == (
        "12.3 ms a step foretold, 13.0 ms measured; 1.50 GiB foretold, 1.00 GiB measured"
    )
    assert beside(foretold, 0.013, 2**30, on_gpu=False) == "12.3 ms a step foretold, 13.0 ms measured"
