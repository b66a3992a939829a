"""Parameters in parts: what several ranks learn is what one process learns."""

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import pytest
import torch
from torch import nn

from qkv.errors import QkvError
from qkv.parts.routing import Router
from qkv.train.evaluation import ValidationLoss, shared_by
from qkv.train.objectives.expert_losses import with_expert_losses
from qkv.train.objectives.language import LanguageLoss
from qkv.train.optimizers import adafactor, adamw_8bit, lion, muon
from qkv.train.parallel.team import team_of
from qkv.train.parallel.world import current_world
from qkv.train.settings import TrainSettings
from tests.train.parallel.ranks import run_ranks
from tests.train.parallel.steps import language_model, some_batches, train_a_little


def same(ranks: int, parallel: str = "", make: Callable[[], nn.Module] = language_model, **settings: Any) -> None:
    signs = settings.get("optimize") is lion  # which makes a full step of what is nothing but rounding
    losses, weights = train_a_little(make, **settings)
    for of_rank, theirs in run_ranks(ranks, there, make, parallel, settings):
        assert [count for *_, count in of_rank] == [count for *_, count in losses]
        torch.testing.assert_close(torch.tensor(of_rank), torch.tensor(losses), rtol=1e-5, atol=1e-6)
        assert theirs.keys() == weights.keys()
        for name, tensor in weights.items():
            if signs and name.endswith("key.bias"):
                continue
            torch.testing.assert_close(
                theirs[name], tensor, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
            )


def there(make: Callable[[], nn.Module], parallel: str, settings: dict[str, Any]) -> object:
    return train_a_little(make, parallel, **settings)


def with_experts() -> nn.Module:
    model = language_model(experts=4)
    for module in model.modules():
        if isinstance(module, Router):
            module.jitter = 0.0
    return model


@pytest.mark.parametrize(
    ("ranks", "parallel"),
    [(2, ""), (4, "replicate:2"), (2, "tensor:2"), (4, "tensor:2"), (2, "context:2"), (4, "context:2,tensor:2")],
)
def test_a_step_on_several_ranks_is_that_of_one_process(ranks: int, parallel: str) -> None:
    same(ranks, parallel)


def test_several_batches_for_an_update() -> None:
    same(2, accumulate=2, clip=0.1)


@pytest.mark.parametrize(("ranks", "parallel"), [(2, ""), (2, "expert:2"), (4, "expert:2"), (4, "expert:2,context:2")])
def test_experts_on_several_ranks(ranks: int, parallel: str) -> None:
    same(ranks, parallel, with_experts)


@pytest.mark.parametrize("optimize", [partial(muon, epsilon=1e-3), lion])
def test_other_optimizers_on_parts(optimize: Any) -> None:
    same(2, "", optimize=optimize, steps=2)


def test_blocks_that_are_computed_twice() -> None:
    same(2, recompute=True)


def refused() -> list[str]:
    said = []
    for optimize, parallel in ((adafactor, ""), (adamw_8bit, ""), (muon, "tensor:2")):
        with pytest.raises(QkvError) as error:
            train_a_little(language_model, parallel, optimize=optimize)
        said.append(str(error.value))
    return said


def test_optimizers_that_need_what_no_rank_has_are_refused() -> None:
    for said in run_ranks(2, refused):
        assert [text.split()[0] for text in said] == ["Adafactor", "AdamW8bit", "Muon"]
        assert all("take one of Adam, AdamW" in text for text in said)


def measured(make: Callable[[], nn.Module], parallel: str) -> dict[str, float]:
    """Figures of batches of unequal size, of which there are fewer in the last turn than ranks."""
    model, settings = make(), TrainSettings(steps=1, device="cpu", parallel=parallel)
    objective = with_expert_losses(model, LanguageLoss())
    team = team_of(current_world(), model, objective, settings)
    batches = list(islice(some_batches(), 5))
    with torch.no_grad(), shared_by(team):
        return team.inside(lambda: ValidationLoss(objective, batches)(model.eval()))


@pytest.mark.parametrize(("make", "parallel"), [(language_model, "context:2"), (with_experts, "expert:2")])
def test_figures_of_batches_that_ranks_share_out(make: Callable[[], nn.Module], parallel: str) -> None:
    alone = measured(make, "")
    for figures in run_ranks(4, measured, make, parallel):
        assert figures == pytest.approx(alone, rel=1e-5)
