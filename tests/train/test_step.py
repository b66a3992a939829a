"""One update is the exact mean over its tokens, clipped by norm, however the tokens were split."""

import copy

import pytest
import torch
from torch import nn

from qkv.train.objectives import SequenceToSequenceLoss
from qkv.train.optimizers import adam
from qkv.train.prefetch import Prefetch
from qkv.train.settings import TrainSettings
from qkv.train.step import FlopCount, Stepper, Update
from tests.train.tiny import TinyBatches, TinyModel, make_batch

OBJECTIVE = SequenceToSequenceLoss(smoothing=0.1)
CPU = torch.device("cpu")


class Gradients(torch.optim.SGD):
    """Keeps the gradients it was given and changes nothing."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.0)
        self.seen: list[torch.Tensor] = []

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.seen = [parameter.grad.clone() for parameter in self.param_groups[0]["params"]]


def one_update(model: nn.Module, flops: FlopCount = 0.0, **settings: object) -> tuple[Update, list[torch.Tensor]]:
    optimizer = Gradients(model)
    stepper = Stepper(model, OBJECTIVE, optimizer, TrainSettings(steps=1, device="cpu", **settings), flops)
    return stepper.update(Prefetch(TinyBatches(size=3), CPU)), optimizer.seen


def test_accumulation_weighs_tokens_and_not_micro_batches() -> None:
    model = TinyModel(dropout=0.0)
    update, gradients = one_update(copy.deepcopy(model), accumulate=3, clip=None)
    batches = [make_batch(number) for number in range(3)]
    tokens = [batch.target_tokens for batch in batches]
    assert len(set(tokens)) > 1, "unequal batches are the point"
    losses = [OBJECTIVE(model, batch).total for batch in batches]
    expected = torch.autograd.grad(sum(losses) / sum(tokens), list(model.parameters()))
    assert update.count == sum(tokens)
    torch.testing.assert_close(update.total, sum(losses).detach())
    for mine, right in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, right)
    norm = torch.cat([gradient.flatten() for gradient in expected]).norm()
    torch.testing.assert_close(update.norm, norm)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_clipping_limits_the_norm_and_reports_it_as_it_was(accumulate: int) -> None:
    model = TinyModel(dropout=0.0)
    free, unclipped = one_update(copy.deepcopy(model), accumulate=accumulate, clip=None)
    update, gradients = one_update(model, accumulate=accumulate, clip=0.01)
    assert update.norm.item() == pytest.approx(free.norm.item())
    assert free.norm.item() > 0.01
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
    assert norm == pytest.approx(0.01, rel=1e-3)
    for clipped, whole in zip(gradients, unclipped, strict=True):
        torch.testing.assert_close(clipped, whole * (0.01 / free.norm), rtol=1e-3, atol=1e-7)


def test_flops_are_counted_for_tokens_or_by_the_batch() -> None:
    model = TinyModel()
    update, _ = one_update(model, 3.0, accumulate=2)
    assert update.flops == 3.0 * update.count
    by_batch, _ = one_update(model, lambda batch: 10.0 * len(batch.source), accumulate=2)
    assert by_batch.flops == 10.0 * (3 + 3)


def test_the_rate_of_every_group_follows_the_schedule() -> None:
    model = TinyModel()
    optimizer = torch.optim.SGD([{"params": [model.mix.weight], "lr": 0.5}, {"params": [model.mix.bias], "lr": 0.2}])
    stepper = Stepper(model, OBJECTIVE, optimizer, TrainSettings(steps=1))
    assert stepper.set_rate(0.1) == pytest.approx(0.05)
    assert stepper.set_rate(0.5) == pytest.approx(0.25)
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.1)


def test_gradients_do_not_leak_into_the_next_update() -> None:
    model = TinyModel()
    Stepper(model, OBJECTIVE, adam(model), TrainSettings(steps=1)).update(Prefetch(TinyBatches(), CPU))
    assert all(parameter.grad is None for parameter in model.parameters())
