"""What holds for every optimizer: exact resume, who decays, skipped updates, autocast, accumulation, many at once."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from qkv.errors import QkvError
from qkv.train.optimizers import OPTIMIZERS, AdamW8bit, Lion, Muon, adafactor, adamw_8bit, lion, muon, own
from qkv.train.schedules import Linear
from tests.train.optimizers.common import FOR_TINY, run, small_gpt2
from tests.train.tiny import TinyModel, train_tiny

OWN = [name for name in FOR_TINY if name != "adamw"]


def test_every_name_is_tested() -> None:
    assert set(FOR_TINY) == set(OPTIMIZERS)


@pytest.mark.parametrize("name", FOR_TINY)
@pytest.mark.parametrize("how", [{}, {"precision": "bfloat16", "accumulate": 2, "clip": 0.1, "ema": 0.9}])
def test_three_steps_and_three_more_are_six(tmp_path: Path, name: str, how: dict[str, Any]) -> None:
    whole, at_once = run(tmp_path / "whole", name, 6, **how)
    run(tmp_path / "parts", name, 3, **how)
    parts, resumed = run(tmp_path / "parts", name, 6, run={"resume": True}, **how)
    for (path, one), other in zip(whole.named_parameters(), parts.parameters(), strict=True):
        assert torch.equal(one, other), path
    for one, other in zip(at_once.state.values(), resumed.state.values(), strict=True):
        assert one.keys() == other.keys()
        for key in one:
            value, again = torch.as_tensor(one[key]), torch.as_tensor(other[key])
            assert torch.equal(value, again), key
            assert key == "step" or value.dtype == again.dtype, key
    assert not any(torch.equal(a, b) for a, b in zip(whole.parameters(), TinyModel().parameters(), strict=True))


@pytest.mark.parametrize("name", FOR_TINY)
def test_accumulated_batches_weigh_as_one(tmp_path: Path, name: str) -> None:
    """A batch taken twice for one update is the batch taken once."""

    class Twice:
        def __init__(self) -> None:
            self.number = 0

        def __iter__(self) -> Any:
            from tests.train.tiny import make_batch

            while True:
                self.number += 1
                yield make_batch((self.number - 1) // 2)

        def state_dict(self) -> dict[str, Any]:
            return {"number": self.number}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.number = state["number"]

    class Once(Twice):
        def __iter__(self) -> Any:
            from tests.train.tiny import make_batch

            while True:
                self.number += 1
                yield make_batch(self.number - 1)

    def trained(folder: Path, batches: Any, accumulate: int) -> nn.Module:
        model = TinyModel(dropout=0.0)
        made = FOR_TINY[name](model)
        train_tiny(folder, model=model, optimizer=made, batches=batches, accumulate=accumulate, steps=3)
        return model

    once, twice = trained(tmp_path / "once", Once(), 1), trained(tmp_path / "twice", Twice(), 2)
    for one, other in zip(once.parameters(), twice.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def names_by_decay(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[each]: group["weight_decay"] for group in optimizer.param_groups for each in group["params"]}


@pytest.mark.parametrize("name", FOR_TINY)
def test_norms_biases_and_tables_do_not_decay(name: str) -> None:
    model = small_gpt2()
    found = names_by_decay(model, OPTIMIZERS[name].make(model, weight_decay=0.3))
    assert found.keys() == {path for path, _ in model.named_parameters()}
    for path, decay in found.items():
        matrix = path.endswith("weight") and "norm" not in path and "embed" not in path
        assert decay == (0.3 if matrix else 0.0), path


@pytest.mark.parametrize("name", FOR_TINY)
def test_decay_takes_a_share_of_the_weights_and_nothing_of_others(name: str) -> None:
    """Without a gradient's direction (all zeros) only decay moves anything."""
    model = small_gpt2()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    before = {path: parameter.detach().clone() for path, parameter in model.named_parameters()}
    optimizer = OPTIMIZERS[name].make(model, learning_rate=0.1, weight_decay=0.5)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    decays = names_by_decay(model, optimizer)
    for path, parameter in model.named_parameters():
        share = 0.95 if decays[path] else 1.0
        torch.testing.assert_close(parameter.detach(), before[path] * share, msg=path)


@pytest.mark.parametrize("name", OWN)
def test_an_update_that_is_not_finite_leaves_no_trace(tmp_path: Path, name: str) -> None:
    from qkv.train.objectives import Loss, SequenceToSequenceLoss

    plain, broken = SequenceToSequenceLoss(), []

    def objective(model: nn.Module, batch: Any) -> Loss:
        loss = plain(model, batch)
        broken.append(None)
        return Loss(loss.total * float("nan"), loss.count) if len(broken) == 2 else loss

    model, optimizer = run(tmp_path / "run", name, 3, objective=objective)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert {state["step"] for state in optimizer.state.values()} == {2}


@pytest.mark.parametrize("make", [adamw_8bit, muon, lion, adafactor])
def test_many_parameters_at_once_are_each_by_itself(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors that are put side by side for speed must not see each other."""

    def trained(most: int) -> list[torch.Tensor]:
        monkeypatch.setattr(own, "MOST_AT_ONCE", most)
        torch.manual_seed(3)
        model = small_gpt2(width=32, hidden=160).double()
        optimizer = make(model)
        generator = torch.Generator().manual_seed(1)
        for _ in range(3):
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    for one, other in zip(trained(1), trained(2**24), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", OWN)
def test_a_parameter_that_begins_later_has_its_own_age(name: str) -> None:
    model = TinyModel()
    optimizer = FOR_TINY[name](model)
    for frozen in (True, False):
        for path, parameter in model.named_parameters():
            parameter.grad = None if frozen and path.startswith("mix") else torch.ones_like(parameter)
        optimizer.step()
    ages = {path: optimizer.state[parameter]["step"] for path, parameter in model.named_parameters()}
    assert {path for path, age in ages.items() if age == 1} == {"mix.weight", "mix.bias"}


@pytest.mark.parametrize("name", OWN)
def test_rates_by_depth(name: str) -> None:
    from qkv.train.adapt import LayerwiseRates

    model = small_gpt2()
    groups = OPTIMIZERS[name].make(model, learning_rate=0.1, rates=LayerwiseRates(0.5)).param_groups
    assert groups[0]["lr"] == 0.1
    assert min(group["lr"] for group in groups) == pytest.approx(0.1 * 0.5**3)
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


@pytest.mark.parametrize("name", OWN)
def test_a_schedule_sets_the_rate_of_every_group(tmp_path: Path, name: str) -> None:
    _, optimizer = run(tmp_path / "run", name, 4, schedule=Linear())
    assert all(group["lr"] == pytest.approx(group["initial_lr"] / 4) for group in optimizer.param_groups)


@pytest.mark.parametrize("make", [partial(Lion, lr=-1.0), partial(Muon, momentum=1.0), partial(AdamW8bit, eps=-1e-8)])
def test_nonsense_is_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(QkvError, match="needs a"):
        make([nn.Parameter(torch.ones(2))])


@pytest.mark.parametrize("name", FOR_TINY)
def test_a_closure_is_called_with_gradients_on(name: str) -> None:
    model = TinyModel()
    optimizer = FOR_TINY[name](model)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = sum(parameter.square().sum() for parameter in model.parameters())
        loss.backward()
        return loss.detach()

    before = float(closure())
    assert float(optimizer.step(closure)) == before
    assert float(closure()) < before
