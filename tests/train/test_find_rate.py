"""The search for a learning rate: what it finds, and that it leaves everything as it was."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from qkv.errors import QkvError
from qkv.train.adjust import HeadFirst
from qkv.train.find_rate import FindRate, RateFound, RateSearch
from qkv.train.objectives import Loss, SequenceToSequenceLoss
from qkv.train.optimizers import adamw, decay_groups
from qkv.train.random_state import random_state
from qkv.train.settings import TrainSettings
from tests.train.tiny import TinyBatches, TinyModel, make_batch

SETTINGS = TrainSettings(steps=5, device="cpu")


def found(model: nn.Module | None = None, find: FindRate | None = None, **more: Any) -> RateSearch:
    how = {"objective": SequenceToSequenceLoss(), "batches": TinyBatches(), "settings": SETTINGS, **more}
    return (find or FindRate(adamw, updates=40)).search(model or TinyModel(), **how)


def test_rates_rise_by_one_ratio_around_the_optimizers_own() -> None:
    search = found(find=FindRate(partial(adamw, learning_rate=1e-4), updates=7, factor=100.0))
    assert search.rates == pytest.approx([10 ** (-6 + number * 4 / 6) for number in range(7)])
    assert len(search.losses) == len(search.smoothed) == 7


def test_the_suggestion_lies_below_the_lowest_and_the_highest_rates_are_not_tried() -> None:
    search = found(find=FindRate(adamw, updates=80, factor=1e5))
    assert search.suggested == search.lowest / 10
    assert 1e-4 < search.suggested < 1
    assert search.rates[-1] < 100  # it ended once the loss was worse than in the beginning


class Quadratic(nn.Module):
    """f(w) = w² / 2 from 1: plain gradient descent falls for rates below 2 and rises for all above."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))


def test_gradient_descent_on_a_parabola_ends_at_two() -> None:
    def objective(model: Quadratic, batch: Any) -> Loss:
        return Loss(model.w.square().sum() / 2, 1)

    find = FindRate(lambda model: torch.optim.SGD(decay_groups(model, 0.0), lr=1.0), updates=200, factor=1e4)
    settings = TrainSettings(steps=1, device="cpu", clip=None)
    search = found(Quadratic(), find, objective=objective, settings=settings)
    raw = dict(zip(search.losses, search.rates, strict=True))
    assert 0.3 < raw[min(search.losses)] < 3.0
    assert search.rates[-1] < 100


def test_nothing_is_left_behind() -> None:
    model, batches = TinyModel(), TinyBatches()
    model.norm.requires_grad_(False)
    model.mix.eval()
    list(zip(range(2), batches, strict=False))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    place, random = batches.state_dict(), random_state()
    rests = HeadFirst(100, rests=("mix",))
    search = found(model, batches=batches, adjust=rests)
    assert len(set(search.losses)) > 10
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert (batches.state_dict(), random_state()) == (place, random)
    assert all(parameter.grad is None for parameter in model.parameters())
    learns = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert learns == {"embedding.weight", "mix.weight", "mix.bias"}
    assert model.training
    assert not model.mix.training


def test_the_same_is_found_again() -> None:
    assert found() == found()


def test_after_an_error_all_is_as_it_was_too() -> None:
    model = TinyModel()
    before = model.mix.weight.detach().clone()
    plain, taken = SequenceToSequenceLoss(), []

    def objective(model: nn.Module, batch: Any) -> Loss:
        taken.append(None)
        if len(taken) == 30:
            raise QkvError("Broken.")
        return plain(model, batch)

    with pytest.raises(QkvError, match="Broken"):
        found(model, FindRate(adamw), objective=objective)
    assert torch.equal(model.mix.weight, before)


def test_a_loss_that_never_falls_has_no_suggestion() -> None:
    search = RateSearch((1e-3, 1e-2), (1.0, 2.0), (1.0, 1.5))
    assert search.suggested is None
    assert "No rate" in str(RateFound(search))


def test_a_loss_that_is_never_finite_is_said() -> None:
    def objective(model: nn.Module, batch: Any) -> Loss:
        return Loss(SequenceToSequenceLoss()(model, make_batch(0)).total * float("nan"), 1)

    with pytest.raises(QkvError, match="not finite"):
        found(objective=objective)


@pytest.mark.parametrize("wrong", [{"updates": 1}, {"factor": 1.0}])
def test_nonsense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(QkvError, match="To find a rate"):
        FindRate(adamw, **wrong)
