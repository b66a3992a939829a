"""Which steps are recorded without being asked for: those of known code that changes nothing on the host."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from qkv.models.catalogue import build
from qkv.models.gpt2 import GPT2Sizes
from qkv.train.objectives.ctc import CTCLoss
from qkv.train.objectives.distillation import DistillationLoss
from qkv.train.objectives.language import LanguageLoss
from qkv.train.optimizers import adam
from qkv.train.recordable import Watchers, numbers_of, why_plain
from qkv.train.settings import TrainSettings
from qkv.train.step import Stepper
from tests.train.tiny import TinyModel

GPU = torch.device("cuda")
SIZES = GPT2Sizes(vocabulary=32, positions=16, width=16, hidden=32, heads=2, layers=1)


@pytest.fixture
def model() -> nn.Module:
    return build("gpt2", SIZES)


def settings(**more: Any) -> TrainSettings:
    return TrainSettings(steps=1, device="cpu", **more)


def foreign(model: nn.Module, batch: Any) -> Any:
    return LanguageLoss()(model, batch)


def test_known_code_is_recorded_unless_somebody_says_no(model: nn.Module) -> None:
    assert why_plain(model, LanguageLoss(), settings(), GPU) is None
    assert why_plain(model, DistillationLoss(build("gpt2", SIZES), LanguageLoss()), settings(), GPU) is None
    assert why_plain(model, LanguageLoss(), settings(record=False), GPU) is not None


@pytest.mark.parametrize(
    ("objective", "more", "why"),
    [
        (foreign, {}, "foreign is defined elsewhere"),
        (partial(foreign), {}, "partial is defined elsewhere"),
        (DistillationLoss(TinyModel(), LanguageLoss()), {}, "TinyModel is defined elsewhere"),
        (LanguageLoss(), {"deterministic": True}, "bit for bit"),
    ],
)
def test_what_is_not_known_is_recorded_only_where_it_is_asked_for(
    objective: Any, more: dict[str, Any], why: str, model: nn.Module
) -> None:
    assert why in (why_plain(model, objective, settings(**more), GPU) or "")
    assert why_plain(model, objective, settings(record=True, **more), GPU) is None


def test_models_of_others_and_models_that_are_watched_are_plain(model: nn.Module) -> None:
    assert "TinyModel" in (why_plain(TinyModel(), LanguageLoss(), settings(), GPU) or "")
    hook = model.get_submodule("stack").register_forward_hook(lambda *_: None)
    assert "watches a Stack" in (why_plain(model, LanguageLoss(), settings(), GPU) or "")
    hook.remove()
    next(model.parameters()).register_post_accumulate_grad_hook(lambda _: None)
    assert "watches gradients" in (why_plain(model, LanguageLoss(), settings(), GPU) or "")


def test_modes_that_look_on_are_watchers(model: nn.Module) -> None:
    watchers = Watchers(model.modules(), list(model.parameters()))
    assert not watchers
    with FlopCounterMode(display=False):
        assert watchers
    with torch.autograd.set_detect_anomaly(True):
        assert watchers
    assert not watchers


@pytest.mark.parametrize("record", [None, True])
def test_what_cannot_be_recorded_is_not_whoever_asks(record: bool | None, model: nn.Module) -> None:
    chosen = settings(record=record)
    assert "no GPU" in (why_plain(model, LanguageLoss(), chosen, torch.device("cpu")) or "")
    assert "ranks" in (why_plain(model, LanguageLoss(), chosen, GPU, ranks=2) or "")
    assert "between updates" in (why_plain(model, LanguageLoss(), chosen, GPU, adjusted=True) or "")
    assert "computed twice" in (why_plain(model, LanguageLoss(), settings(record=record, recompute=True), GPU) or "")
    assert "on the host" in (why_plain(model, CTCLoss(), chosen, GPU) or "")


def test_a_reason_is_said_to_those_who_asked(model: nn.Module) -> None:
    for record, count in ((None, 0), (False, 0), (True, 1)):
        said: list[str] = []
        stepper = Stepper(model, LanguageLoss(), adam(model), settings(record=record), say=said.append)
        assert stepper.recorded is None
        assert len(said) == count


def test_numbers_of_an_objective_are_those_that_it_holds_on_the_host() -> None:
    teacher = nn.Linear(2, 2)
    one, other = (DistillationLoss(teacher, LanguageLoss(smoothing=each)) for each in (0.0, 0.1))
    assert numbers_of(one) == numbers_of(DistillationLoss(nn.Linear(2, 2), LanguageLoss()))
    assert numbers_of(one) != numbers_of(other)
    one.temperature = 3.0
    assert numbers_of(one) != numbers_of(DistillationLoss(teacher, LanguageLoss()))
    assert numbers_of(1) != numbers_of(True)
