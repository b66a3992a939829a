"""A model divided among tensor ranks, sharded among others, steps as the whole one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from qkv.train.optimizers import adamw
from qkv.train.parallel.experts import divide_experts, expert_mesh
from qkv.train.parallel.fsdp import shard
from qkv.train.parallel.norm import clip_gradients, total_norm
from qkv.train.parallel.tensor import divide_tensors
from tests.models import small
from tests.train.parallel.divided import close, ids, text_model, ways
from tests.train.parallel.ranks import run_ranks
from tests.train.parallel.wholes import whole_tensors

CLIP = 0.5


def updated(model: nn.Module, learn_from: Callable[[], None]) -> list[float]:
    """The norms of the gradients of three updates, each clipped.

    A gradient that should be none (a key's bias changes no attention) is rounding error, which Adam would make large.
    """
    optimizer, norms = adamw(model, learning_rate=0.01, epsilon=1e-3), []
    for _ in range(3):
        optimizer.zero_grad()
        learn_from()
        norm = total_norm([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
        clip_gradients(model.parameters(), CLIP, norm)
        optimizer.step()
        norms.append(float(norm))
    return norms


def update_together(family: str, kind: str, shards: int, sizes: dict[str, Any]) -> tuple[list[float], dict[str, Any]]:
    """Divided among tensor ranks and sharded among the others, each of which sees rows of its own."""
    model, rows = text_model(family, kind, **sizes), ids(4, 9)
    mesh = ways(shards, dist.get_world_size() // shards)
    divide_tensors(model, mesh["tensor"])
    sharded = shard(model, mesh["shard"])
    mine = rows.chunk(shards)[mesh.get_local_rank("shard")]
    norms = updated(model, lambda: sharded(lambda: (model(mine) ** 2).sum()).backward())
    return norms, whole_tensors(model)


@pytest.mark.parametrize(
    ("ranks", "shards", "family", "kind", "sizes"),
    [(2, 1, "llama", "language", {"key_value_heads": 2}), (4, 2, "bert", "masked", {"hidden": 18})],
)
def test_clipped_updates_are_those_of_one_process(
    ranks: int, shards: int, family: str, kind: str, sizes: dict[str, Any]
) -> None:
    one, rows = text_model(family, kind, **sizes), ids(4, 9)
    expected = updated(one, lambda: (one(rows) ** 2).sum().backward())
    assert min(expected) > CLIP, "so that clipping changes something"
    answers = run_ranks(ranks, update_together, family, kind, shards, sizes)
    for norms, parameters in answers:
        assert norms == answers[0][0], "ranks must agree to the last bit"
        torch.testing.assert_close(norms, expected, rtol=1e-4, atol=0)
        close(parameters, whole_tensors(one))


def update_experts() -> tuple[list[float], dict[str, Tensor]]:
    """Two ranks that see rows of their own keep different experts; each of them is two tensor ranks."""
    model, mesh = small.small_model("switch"), ways(2, 2)
    rows = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("data", "context", "tensor"))
    divide_experts(model, expert_mesh(rows, 2))
    divide_tensors(model, mesh["tensor"])
    sharded, rank = shard(model, mesh["shard"]), mesh.get_local_rank("shard")
    source, target = (ids(4, slots).chunk(2)[rank] for slots in (7, 5))
    norms = updated(model, lambda: sharded(lambda: (model(source, None, target) ** 2).sum()).backward())
    return norms, whole_tensors(model)


@pytest.mark.slow
def test_a_model_with_experts_is_divided_where_they_are_on_different_ranks() -> None:
    one = small.small_model("switch")
    expected = updated(one, lambda: (one(ids(4, 7), None, ids(4, 5)) ** 2).sum().backward())
    for norms, parameters in run_ranks(4, update_experts):
        torch.testing.assert_close(norms, expected, rtol=1e-4, atol=0)
        close(parameters, whole_tensors(one))
