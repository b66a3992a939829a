"""Models whose experts live on several ranks: losses, gradients and an update are those of one process."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from qkv.models.catalogue import FAMILIES, build
from qkv.models.head_choice import HeadChoice
from qkv.parts.context import Ledger
from qkv.parts.experts import Mixture
from qkv.parts.routing import Capacity, Router
from qkv.train.objectives.expert_losses import WithExpertLosses
from qkv.train.objectives.loss import Loss
from qkv.train.objectives.sequence_to_sequence import SequenceToSequenceLoss
from qkv.train.optimizers import adamw
from qkv.train.parallel.experts import OverRanks, divide_experts, expert_mesh, share_balance
from qkv.train.parallel.fsdp import Sharded, shard
from tests.models.small import perturb, shrunk
from tests.train.parallel.ranks import run_ranks
from tests.train.parallel.wholes import whole_tensors

TOGETHER = {"atol": 2e-5, "rtol": 1e-4}  # float32, summed in another order
SIZES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "switch": ("switch", "base-8", {"capacity": 2, "jitter": 0.0, "dropout": 0.0}),
    "gpt2": ("gpt2", "base", {"experts": 4, "dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}),
    "mixtral": ("mixtral", "8x7b", {}),
}
SLOTS = 8


def some_model(name: str, capacity: Capacity | None) -> nn.Module:
    """In training, without anything that is left to chance, and every parameter far from where it begins."""
    torch.manual_seed(0)
    family, published, given = SIZES[name]
    sizes = shrunk(FAMILIES[family].published[published], **given)
    model = build(family, sizes, HeadChoice("language")) if FAMILIES[family].heads else build(family, sizes)
    perturb(model)
    for module in model.modules():
        if isinstance(module, Router):
            module.jitter = 0.0
            module.capacity = module.capacity or capacity
    return model.train()


@dataclass
class Rows:
    """Some rows of a batch: a source and a target, or a text."""

    source: Tensor
    padding: Tensor | None
    target: Tensor
    target_lengths: Tensor

    @property
    def target_tokens(self) -> int:
        return int((self.target_lengths - 1).clamp(min=0).sum())

    def cut(self, first: int, last: int) -> Rows:
        padding = None if self.padding is None else self.padding[first:last]
        return Rows(self.source[first:last], padding, self.target[first:last], self.target_lengths[first:last])


def some_rows(count: int) -> Rows:
    torch.manual_seed(1)
    return Rows(
        torch.randint(0, 19, (count, SLOTS)),
        torch.randint(1, SLOTS + 1, (count,)),
        torch.randint(0, 19, (count, SLOTS + 1)),
        torch.randint(2, SLOTS + 2, (count,)),
    )


class NextToken:
    """Of one text a row, whose padding is marked for experts."""

    def measure(self, model: Any, batch: Rows, ledger: Ledger | None = None) -> dict[str, Loss]:
        ids, wanted = batch.target[:, :-1], batch.target[:, 1:]
        logits = model(ids, ledger=ledger)
        real = torch.arange(SLOTS) < batch.target_lengths[:, None] - 1
        losses = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none")
        return {"loss": Loss((losses * real.flatten()).sum(), batch.target_tokens)}


def objective_of(name: str) -> WithExpertLosses:
    task = SequenceToSequenceLoss(smoothing=0.0) if name == "switch" else NextToken()
    return WithExpertLosses(task, balance=0.3, router_z=0.05)


def models_on_ranks(expert: int, rows: list[int], cases: list[tuple[str, Capacity | None]]) -> None:
    mesh = init_device_mesh("cpu", (len(rows), 1, 1), mesh_dim_names=("data", "context", "tensor"))
    experts = expert_mesh(mesh, expert)
    for name, capacity in cases:
        check_a_step(name, capacity, rows, mesh, experts)


def check_a_step(name: str, capacity: Capacity | None, rows: list[int], mesh: DeviceMesh, experts: DeviceMesh) -> None:
    alone, batch, objective = some_model(name, capacity), some_rows(sum(rows)), objective_of(name)
    model = deepcopy(alone)
    whole = objective(alone, batch)
    (whole.total / whole.count).backward()

    divide_experts(model, experts)
    over = share_balance(model, dist.group.WORLD)
    total, beside = taken(shard(model, mesh["data"]), over, objective, batch, rows)
    (total / whole.count).backward()
    total = total.detach().clone()
    dist.all_reduce(total)
    torch.testing.assert_close(total, whole.total.detach(), **TOGETHER)
    torch.testing.assert_close(beside, dict(whole.beside), **TOGETHER)
    same(
        f"gradients of {name} {capacity}",
        whole_tensors(model, gradients=True),
        {key: parameter.grad for key, parameter in alone.named_parameters()},
    )
    for each in (model, alone):
        adamw(each, learning_rate=0.01, epsilon=1e-4, weight_decay=0.1).step()
    same(f"{name} {capacity} after a step", whole_tensors(model), whole_tensors(alone))
    for module in model.modules():
        if isinstance(module, Mixture):
            weight = module.outer.weight
            assert weight.to_local().numel() * len(rows) == weight.numel(), "each rank keeps its part and no more"


def taken(
    sharded: Sharded, over: OverRanks, objective: WithExpertLosses, batch: Rows, rows: list[int]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of this rank's rows, and what is told beside it; who has none reads another's, which count nothing."""
    rank = dist.get_rank()
    over.silent = rows[rank] == 0
    first = 0 if over.silent else sum(rows[:rank])
    mine, found = batch.cut(first, first + max(1, rows[rank])), []

    def work() -> Tensor:
        found.append(objective(sharded.model, mine))
        return found[0].total

    total = sharded(work)
    return total * 0 if over.silent else total, dict(found[0].beside)


def same(what: str, found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        said = f"{what}, {key}: "
        torch.testing.assert_close(found[key], tensor, **TOGETHER, msg=lambda text, said=said: said + text)


CASES = [("switch", None), ("gpt2", None), ("gpt2", Capacity(factor=1.0)), ("mixtral", None)]


@pytest.mark.parametrize(("expert", "rows"), [(2, [3, 2]), (2, [2, 1, 1, 2]), (4, [1, 2, 1, 0])], ids=str)
def test_a_step_with_experts_on_ranks_is_that_of_one_process(expert: int, rows: list[int]) -> None:
    """Two ranks, two replicas of two ranks, and four ranks of which one has no rows; blocks are sharded over all."""
    run_ranks(len(rows), models_on_ranks, expert, rows, CASES)
