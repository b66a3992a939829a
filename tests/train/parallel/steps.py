"""A few updates of a small model, by one process or by ranks that share it out: what they end with is compared."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qkv.data.batches import Batches
from qkv.data.documents import Documents
from qkv.data.packing import pack
from qkv.data.plan import RowCount
from qkv.data.token_rows import TokenRows
from qkv.models.catalogue import build, find_family
from qkv.models.head_choice import HeadChoice
from qkv.train.objectives.expert_losses import with_expert_losses
from qkv.train.objectives.language import LanguageLoss
from qkv.train.optimizers import adamw
from qkv.train.parallel.team import team_of
from qkv.train.parallel.world import current_world
from qkv.train.prefetch import Prefetch
from qkv.train.settings import TrainSettings
from qkv.train.step import Stepper

VOCABULARY = 37
CPU = torch.device("cpu")

SMALL: dict[str, dict[str, Any]] = {
    "gpt2": {"vocabulary": VOCABULARY, "positions": 16, "width": 24, "hidden": 44, "heads": 4, "layers": 2,
             "dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0},
}  # fmt: skip


def language_model(family: str = "gpt2", **changes: Any) -> nn.Module:
    """One whose every parameter is far from what it begins with: zeros and ones would hide mistakes."""
    torch.manual_seed(1)
    model: nn.Module = build(family, find_family(family).sizes({**SMALL[family], **changes}), HeadChoice("language"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def some_batches(rows: int = 5, length: int = 12) -> Batches[Any]:
    """Packed documents of many lengths."""
    generator = np.random.default_rng(0)
    texts = [generator.integers(2, VOCABULARY, int(size)).tolist() for size in generator.integers(1, 20, 40)]
    documents = Documents(TokenRows.from_lists(texts, 0), np.array([len(text) for text in texts]))
    return Batches(pack(documents, length, end=1), RowCount(rows), seed=2, prefetch=0)


def train_a_little(
    make: Callable[[], nn.Module],
    parallel: str = "",
    optimize: Callable[..., torch.optim.Optimizer] = partial(adamw, epsilon=1e-3),  # noqa: B008 (never changed)
    steps: int = 3,
    **settings: Any,
) -> tuple[list[tuple[float, float, int]], dict[str, Tensor]]:
    """(loss, norm, tokens) of each update, and the weights at the end, as one process has them.

    AdamW's epsilon is large, so that a gradient that is nothing but rounding (of the keys' biases) is no step of full
    size.
    """
    world, model = current_world(), make()
    chosen = TrainSettings(steps=steps, device="cpu", parallel=parallel, **settings)
    objective = with_expert_losses(model, LanguageLoss())
    team = team_of(world, model, objective, chosen)
    batches = some_batches()
    team.share(batches)
    optimizer = optimize(model, learning_rate=0.01)
    team.check_optimizer(optimizer)
    stepper = Stepper(model, team.objective(objective), optimizer, chosen, flops_per_token=6.0, team=team)
    stream, seen = Prefetch(batches, CPU, team.part), []
    for _ in range(steps):
        update = stepper.update(stream)
        assert update.flops == 6 * update.count
        seen.append((float(update.total), float(update.norm), update.count))
    return seen, dict(team.finished(model).state_dict())
