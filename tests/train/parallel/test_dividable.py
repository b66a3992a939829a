"""Ranks share optimizers that look at one number at a time, and refuse the others before training begins."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from qkv.errors import QkvError
from qkv.train.optimizers import adafactor, adamw, adamw_8bit, lion, muon
from qkv.train.parallel.dividable import refuse_undividable
from qkv.train.parallel.pieces import state_pieces
from qkv.train.parallel.whole import whole_tensors
from qkv.train.parallel.world import current_world
from tests.train.parallel.ranks import run_ranks
from tests.train.parallel.steps import language_model

REFUSED: list[Callable[..., torch.optim.Optimizer]] = [adafactor, adamw_8bit, muon]


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def updated(make: Callable[..., torch.optim.Optimizer], ranks: int = 1) -> dict[str, torch.Tensor | None]:
    model = small()
    if ranks > 1:
        fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    optimizer = make(model)
    refuse_undividable(optimizer)
    for _ in range(2):
        model(torch.ones(2, 6)).square().sum().backward()  # the same on all ranks, so the mean is the gradient
        optimizer.step()
        optimizer.zero_grad()
    assert state_pieces(model, optimizer)
    return dict(whole_tensors(model, current_world()))


def on_ranks() -> tuple[list[str], list[dict[str, torch.Tensor | None]]]:
    refused = []
    for make in REFUSED:
        model = language_model()
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        with pytest.raises(QkvError) as caught:
            refuse_undividable(make(model))
        refused.append(str(caught.value))
    return refused, [updated(make, ranks=2) for make in (adamw, lion)]


def test_what_looks_at_more_than_a_number_is_refused_and_the_rest_is_as_alone() -> None:
    (refused, found), (others, nothing) = run_ranks(2, on_ranks)
    assert refused == others
    assert [sentence.split(",")[0] for sentence in refused] == [
        "Adafactor looks at rows and columns",
        "AdamW8bit looks at blocks of numbers",
        "Muon looks at whole matrices",
    ]
    assert all(tensor is None for each in nothing for tensor in each.values())
    for make, tensors in zip((adamw, lion), found, strict=True):
        for name, tensor in updated(make).items():
            torch.testing.assert_close(tensors[name], tensor)


def test_one_process_takes_any() -> None:
    for make in REFUSED:
        refuse_undividable(make(language_model()))
