"""A small model in training with all that a checkpoint holds, alone or shared out among ranks."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from qkv.train.average import MovingAverage
from qkv.train.checkpoint import Checkpoint, Checkpoints
from qkv.train.objectives.language import LanguageLoss
from qkv.train.optimizers import adamw, lion
from qkv.train.parallel.team import Team, team_of
from qkv.train.parallel.world import current_world
from qkv.train.random_state import random_state
from qkv.train.settings import TrainSettings
from tests.train.parallel.steps import language_model

IDS = torch.arange(24).view(2, 12)


class Trained:
    """A small model and its optimizer, alone or shared out, with a moving average; all the same on all ranks."""

    def __init__(self, folder: Path, parallel: str = "", name: str = "gpt") -> None:
        make, optimizer = KINDS[name]
        self.model = make()
        settings = TrainSettings(steps=1, device="cpu", parallel=parallel)
        self.team: Team = team_of(current_world(), self.model, LanguageLoss(), settings)
        self.optimizer = optimizer(self.model, learning_rate=0.01)
        self.moving = MovingAverage(self.model, 0.75)
        self.checkpoints = Checkpoints(folder, self.team.world, self.team.stream)

    def step(self) -> None:
        self.team.inside(lambda: self.model(IDS).square().sum()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.moving.update()

    def save(self, step: int) -> Path:
        return self.checkpoints.save(
            step,
            model=self.model,
            optimizer=self.optimizer,
            average=self.moving.tensors,
            random=random_state(),
            state={"note": step, "rank": self.team.world.rank},
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        checkpoint.restore_model(self.model)
        checkpoint.restore_optimizer(self.model, self.optimizer)
        checkpoint.restore_average(self.model, self.moving.tensors)
        checkpoint.restore_random(seed=1, stream=self.team.stream)


def gpt() -> nn.Module:
    """Rows that ranks do not share evenly: 37 of embeddings, and 21 of each of two tensor ranks; tied."""
    return language_model(hidden=42)


def with_experts() -> nn.Module:
    return language_model(experts=4)


KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[..., torch.optim.Optimizer]]] = {
    "gpt": (gpt, adamw),
    "experts": (with_experts, lion),
}


def everything(checkpoint: Checkpoint) -> dict[str, Tensor]:
    kinds = {"model": checkpoint.model, "optimizer": checkpoint.optimizer, "average": checkpoint.average or {}}
    return {f"{kind}/{name}": tensor for kind, held in kinds.items() for name, tensor in held.items()}


def check_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(found[name], tensor), name
