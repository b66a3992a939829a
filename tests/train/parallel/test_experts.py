"""Layers whose experts live on several ranks, against the same layers in one process."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from qkv.errors import QkvError
from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Context, Ledger
from qkv.parts.experts import BALANCE, FIGURES, ROUTER_Z, Experts, GatedExperts, Mixture
from qkv.parts.feedforward import MLP, relu
from qkv.parts.routing import Capacity, Router, of_chosen
from qkv.train.parallel.exchange import Trip
from qkv.train.parallel.experts import EvenTravellers, Travellers, divide_experts, expert_mesh, share_balance
from tests.train.parallel.ranks import run_ranks

WIDTH, HIDDEN, EXPERTS, SLOTS = 8, 12, 4, 8
KINDS: dict[str, Callable[..., Mixture]] = {"plain": Experts, "gated": GatedExperts}
# Tokens for all experts, for all but one, and for one alone, so that other ranks have nothing to do.
CHOICES = {"all": [0, 0, 0, 0], "not the second": [0, -99, 0, 0], "the third": [0, 0, 99, 0]}
LAYERS = [
    ("plain", 1, None, "all"),
    ("gated", 2, None, "not the second"),
    ("plain", 2, None, "the third"),
    ("plain", 1, Capacity(2), "not the second"),
    ("gated", 2, Capacity(2), "all"),
    ("gated", 1, Capacity(2), "the third"),
    ("plain", 2, Capacity(6), "all"),  # so many places that too many would stay empty
]
TOGETHER = {"atol": 1e-5, "rtol": 1e-4}  # float32, summed in another order


def layer(kind: str, chosen: int, capacity: Capacity | None, choice: str) -> Mixture:
    torch.manual_seed(0)
    made = KINDS[kind](WIDTH, HIDDEN, Router(WIDTH, EXPERTS, chosen, shares=of_chosen, capacity=capacity, bias=True))
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    with torch.no_grad():
        made.router.bias += torch.tensor(CHOICES[choice])
    return made


def mesh_of_rows() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(), 1, 1), mesh_dim_names=("data", "context", "tensor"))


def passed(
    model: Mixture, x: Tensor, weight: float, documents: Tensor | None, counts: float = 1.0
) -> tuple[Tensor, dict[str, Tensor]]:
    """What a layer answers and tells; gradients are left in its parameters and in x."""
    ledger = Ledger(model, FIGURES)
    found = model(x, Context(tokens=Tokens(SLOTS, documents=documents), ledger=ledger))
    figures = {name.strip("/"): value for name, (value,) in ledger.entries.items()}
    loss = found.sin().sum() + weight * (0.3 * figures[BALANCE] + 0.1 * figures[ROUTER_Z])
    (counts * loss).backward()
    return found.detach(), {name: value.detach() for name, value in figures.items()}


def shard_rest(model: nn.Module, rows: DeviceMesh) -> None:
    """The router over all ranks, as a block does it that is sharded afterwards; gradients are sums."""
    fully_shard(model, mesh=rows["data"])
    model.set_gradient_divide_factor(1.0)
    model.set_force_sum_reduction_for_comms(True)


def compare(rows_mesh: DeviceMesh, mesh: DeviceMesh, model: Mixture, rows: list[int], padded: bool) -> type:
    """A layer on ranks that have so many rows, and the same layer with all of them; how rows came to their experts."""
    rank = dist.get_rank()
    torch.manual_seed(1)
    x = torch.randn(sum(rows), SLOTS, WIDTH)
    documents = (torch.arange(SLOTS) < torch.randint(1, SLOTS, (sum(rows), 1))).long() if padded else None
    alone, x_alone = deepcopy(model), x.clone().requires_grad_()
    expected, told = passed(alone, x_alone, weight=float(sum(range(1, len(rows) + 1))), documents=documents)
    divide_experts(model, mesh)
    share_balance(model, dist.group.WORLD)
    shard_rest(model, rows_mesh)
    seen: list[type] = []
    travel = model.grouping
    model.grouping = lambda routing: _noted(travel(routing), seen)
    mine = x.split(rows)[rank].requires_grad_()
    found, figures = passed(model, mine, float(rank + 1), None if documents is None else documents.split(rows)[rank])
    torch.testing.assert_close(found, expected.split(rows)[rank], **TOGETHER)
    torch.testing.assert_close(figures, told, **TOGETHER)
    torch.testing.assert_close(mine.grad, x_alone.grad.split(rows)[rank], **TOGETHER)
    for (name, parameter), (_, other) in zip(model.named_parameters(), alone.named_parameters(), strict=True):
        assert parameter.shape == other.shape
        torch.testing.assert_close(
            parameter.grad.full_tensor(), other.grad, msg=lambda text, at=name: f"{at}: {text}", **TOGETHER
        )
    (kind,) = seen
    return kind


def _noted(groups: object, seen: list[type]) -> object:
    seen.append(type(groups))
    return groups


def layers_on_ranks(layouts: list[tuple[int, list[int]]]) -> None:
    across = mesh_of_rows()
    for expert, rows in layouts:
        mesh = expert_mesh(across, expert)
        for kind, chosen, capacity, choice in LAYERS:
            way = compare(across, mesh, layer(kind, chosen, capacity, choice), rows, padded=False)
            assert way is (EvenTravellers if capacity == Capacity(2) else Travellers)


def test_a_layer_on_two_ranks_is_the_layer_in_one_process() -> None:
    """Outputs, figures and gradients, whatever the number of rows of each rank, be it none, and whoever is chosen."""
    run_ranks(2, layers_on_ranks, [(2, [2, 2]), (2, [3, 1]), (2, [0, 2])])


def test_a_layer_on_four_ranks_is_the_layer_in_one_process() -> None:
    """Two replicas of two ranks with two experts each, and four ranks with one expert each."""
    run_ranks(4, layers_on_ranks, [(2, [1, 2, 0, 2]), (4, [2, 1, 1, 0])])


def padded_layers() -> None:
    across = mesh_of_rows()
    mesh = expert_mesh(across, 2)
    for capacity in (None, Capacity(2), Capacity(factor=1.0)):
        assert compare(across, mesh, layer("plain", 2, capacity, "all"), [2, 1], padded=True) is Travellers
    assert compare(across, mesh, layer("plain", 1, Capacity(factor=1.0), "all"), [2, 1], padded=False) is EvenTravellers
    some_have_places_and_others_not(across, mesh)
    silent_ranks_count_nothing(across)
    rows_computed_again(across, mesh)
    narrow_rows(mesh["experts"].get_group())


def some_have_places_and_others_not(rows: DeviceMesh, mesh: DeviceMesh) -> None:
    """One rank knows of padding and the other of none: both go the way that both can go."""
    model, rank = layer("plain", 1, Capacity(2), "all"), dist.get_rank()
    x = torch.randn(2, SLOTS, WIDTH)
    tokens = [Tokens(SLOTS), Tokens(SLOTS, documents=torch.ones(2, SLOTS, dtype=torch.long))][rank]
    expected = model(x, Context(tokens=tokens))
    divide_experts(model, mesh)
    shard_rest(model, rows)
    torch.testing.assert_close(model(x, Context(tokens=tokens)), expected, **TOGETHER)


def silent_ranks_count_nothing(rows: DeviceMesh) -> None:
    """A rank that has no rows reads some all the same, for the others' sake: its loss counts 0 times."""
    model, alone, first = layer("plain", 1, None, "all"), layer("plain", 1, None, "all"), dist.get_rank() == 0
    over = share_balance(model, dist.group.WORLD)
    over.silent = not first
    shard_rest(model, rows)
    torch.manual_seed(2)
    x = torch.randn(2, SLOTS, WIDTH)
    _, figures = passed(model, x if first else -x, 1.0, None, counts=float(first))
    _, told = passed(alone, x, 1.0, None)
    torch.testing.assert_close(figures, told, **TOGETHER)
    for mine, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.full_tensor(), other.grad, **TOGETHER)


def rows_computed_again(rows: DeviceMesh, mesh: DeviceMesh) -> None:
    """They travel once more where a layer is computed again on the way back."""
    for capacity in (None, Capacity(2)):
        model, x = layer("gated", 2, capacity, "all"), torch.randn(2, SLOTS, WIDTH)
        alone, context = deepcopy(model), Context(tokens=Tokens(SLOTS))
        divide_experts(model, mesh)
        shard_rest(model, rows)
        gradients = []
        for each in (model, alone):
            mine = x.clone().requires_grad_()
            checkpoint(each, mine, context, use_reentrant=False).sin().sum().backward()
            gradients.append(mine.grad)
        torch.testing.assert_close(*gradients, **TOGETHER)


def narrow_rows(group: dist.ProcessGroup) -> None:
    """Rank 0 keeps a row and sends two; rank 1 sends nothing and keeps nothing. In bfloat16 rows stay what they are."""
    first = dist.get_rank(group) == 0
    trip = Trip([1, 2], [1, 0], group) if first else Trip([0, 0], [2, 0], group)
    x = (torch.arange(6.0).view(3, 2) if first else torch.empty(0, 2)).bfloat16().requires_grad_()
    there = trip.there(x)
    assert there.tolist() == ([[0, 1]] if first else [[2, 3], [4, 5]])
    back = trip.back(2 * there)
    assert torch.equal(back, 2 * x)
    (3 * back).sum().backward()
    assert x.grad.tolist() == [[6, 6]] * len(x)


def test_ranks_take_the_same_way_with_padding_and_without() -> None:
    run_ranks(2, padded_layers)


def laid_out() -> tuple[list[list[list[int]]], list[str]]:
    rows, found = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("data", "context", "tensor")), []
    mesh = expert_mesh(rows, 2)
    for attempt in (
        lambda: divide_experts(MLP(WIDTH, HIDDEN, relu), mesh),
        lambda: divide_experts(Experts(WIDTH, HIDDEN, Router(WIDTH, 3)), mesh),
        lambda: expert_mesh(rows, 4),
    ):
        try:
            attempt()
        except QkvError as error:
            found.append(str(error))
    return mesh.mesh.tolist(), found


def test_neighbours_among_data_ranks_keep_different_experts_and_what_cannot_be_divided_is_refused() -> None:
    for ranks, (no_experts, uneven, few) in run_ranks(4, laid_out):
        assert ranks == [[[0], [2]], [[1], [3]]]  # those that read stretches of the same rows keep the same
        assert "has no experts to be divided" in no_experts
        assert "3 experts cannot be divided evenly among 2 ranks" in uneven
        assert "need a multiple of as many that see rows of their own, not 2" in few
