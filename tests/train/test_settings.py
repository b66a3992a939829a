"""A budget is needed, nonsense is refused, progress is the larger share used."""

from typing import Any

import pytest
import torch

from qkv.errors import QkvError
from qkv.train.settings import CHANGEABLE_ON_RESUME, TrainSettings


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"keep_every": 10}, "save_every"),
        ({"keep_every": 10, "save_every": 3}, "divides it"),
        ({"keep_every": 0, "save_every": 3}, "above 0"),
        ({"roll_back": 1.0, "save_every": 3}, "above 1 times"),
        ({"roll_back": 2.0}, "there must be checkpoints"),
        ({"roll_back": 2.0, "save_every": 3, "keep": 1}, "keep 2"),
    ],
)
def test_what_is_kept_and_gone_back_to_must_be_saved(wrong: dict[str, float], told: str) -> None:
    with pytest.raises(QkvError, match=told):
        TrainSettings(steps=10, **wrong)  # type: ignore[arg-type]
    TrainSettings(steps=10, save_every=5, keep_every=10, roll_back=2.0)


def test_a_budget_is_needed() -> None:
    with pytest.raises(QkvError, match="needs a budget"):
        TrainSettings()


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0}, {"minutes": -1.0}, {"flops": 0.0}, {"evaluations": 0}, {"accumulate": 0},
        {"clip": 0.0}, {"log_every": 0}, {"evaluate_every": 0},
        {"save_every": -2}, {"keep": 0}, {"patience": 0}, {"tolerate": 0}, {"average": -1}, {"ema": 1.0},
        {"precision": "float16"}, {"better": "largest"},
    ],
)  # fmt: skip
def test_nonsense_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(QkvError):
        TrainSettings(**{"steps": 5, **wrong})


def test_progress_is_the_larger_share() -> None:
    assert TrainSettings(steps=10).progress(5, 1e9) == 0.5
    assert TrainSettings(minutes=2).progress(10**9, 30) == 0.25
    both = TrainSettings(steps=10, minutes=1)
    assert both.progress(1, 30) == 0.5
    assert both.progress(9, 6) == 0.9
    assert both.progress(11, 6) == 1.0
    assert TrainSettings(flops=1e9).progress(10**9, 1e9, 2.5e8) == 0.25


def test_evaluations_are_due_at_equal_shares() -> None:
    settings = TrainSettings(steps=10, evaluations=3)
    assert [settings.evaluations_due(step / 10) for step in range(11)] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert TrainSettings(steps=10).evaluations_due(1.0) == 0


def test_what_may_change_on_resume_exists() -> None:
    assert set(TrainSettings.__dataclass_fields__) >= CHANGEABLE_ON_RESUME


@pytest.mark.parametrize(
    ("wrong", "missing"),
    [
        ({"patience": 3}, "evaluate_every"),
        ({"average": 2}, "save_every"),
        ({"average": 1, "ema": 0.9}, "not both"),
        ({"evaluate_every": 2, "evaluations": 3}, "one of the two"),
    ],
)
def test_a_setting_that_would_do_nothing_is_said(wrong: dict[str, Any], missing: str) -> None:
    with pytest.raises(QkvError, match=missing):
        TrainSettings(steps=5, **wrong)


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"seed": 2**70}, {"minutes": float("inf")}])
def test_numbers_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(QkvError, match=next(iter(wrong))):
        TrainSettings(**{"steps": 1, **wrong})


def test_a_score_that_rises_is_not_watched_for_falling() -> None:
    with pytest.raises(QkvError, match="higher bleu is better"):
        TrainSettings(steps=1, watch="bleu")
    assert TrainSettings(steps=1, watch="bleu", better="higher").improves(2.0, 1.0)


def test_the_precision_is_what_the_device_is_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert TrainSettings(steps=1).on(cpu).precision == "float32"
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert TrainSettings(steps=1).on(cuda).precision == "bfloat16"  # priced where there is none
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "Old GPU")
    for capability, precision in (((9, 0), "bfloat16"), ((8, 0), "bfloat16"), ((7, 5), "float32")):
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda _, capability=capability: capability)
        assert TrainSettings(steps=1).on(cuda).precision == precision
        assert TrainSettings(steps=1, precision="float32").on(cuda).precision == "float32"
    with pytest.raises(QkvError, match="Old GPU does not multiply bfloat16"):
        TrainSettings(steps=1, precision="bfloat16").on(cuda)
