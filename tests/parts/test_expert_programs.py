"""Tokens carried to experts and back by programs, against torch's operations.

pytest -m gpu tests/parts; without a GPU, TRITON_INTERPRET=1 lets Triton's interpreter read them.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from qkv.parts import experts, grouped, routing
from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Context, Ledger
from qkv.parts.experts import FIGURES, TALLY, Experts, Mixture
from qkv.parts.grouped import EvenGroups, Groups
from qkv.parts.routing import Capacity, Router

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
DEVICE = "cpu" if INTERPRETED else "cuda"
WIDTH, HIDDEN, ROWS = 24, 40, 3
CAPACITIES = [None, Capacity(4), Capacity(factor=1.0)]


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Programs are taken even where there is no GPU."""
    for module in (routing, grouped):
        monkeypatch.setattr(module, "runs_or_counts", lambda x: True)
    return monkeypatch


def mixture(count: int, capacity: Capacity | None) -> Mixture:
    torch.manual_seed(0)
    made = Experts(WIDTH, HIDDEN, Router(WIDTH, count, capacity=capacity)).to(DEVICE)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


def answers(model: Mixture, x: Tensor) -> list[Tensor]:
    """What the layer makes and tells, and all gradients."""
    x, ledger = x.clone().requires_grad_(), Ledger(model, [TALLY, *FIGURES])
    made = model(x, Context(tokens=Tokens(x.shape[1]), ledger=ledger))
    told = [value for _, _, value in ledger.written]
    loss = made.sin().sum() + 3 * told[1] + 2 * told[2]
    return [made.detach(), *(each.detach() for each in told), *torch.autograd.grad(loss, (x, *model.parameters()))]


@pytest.mark.parametrize("capacity", CAPACITIES, ids=str)
@pytest.mark.parametrize(("slots", "count"), [(1, 2), (13, 4), (300, 5), (520, 8)])
def test_a_layer_is_what_torch_computes(
    slots: int, count: int, capacity: Capacity | None, programs: pytest.MonkeyPatch
) -> None:
    model, x = mixture(count, capacity), torch.randn(ROWS, slots, WIDTH, device=DEVICE)
    found = answers(model, x)
    programs.undo()
    expected = answers(model.cpu(), x.cpu())
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize(("capacity", "kind"), [(Capacity(6), EvenGroups), (Capacity(20), Groups), (None, Groups)])
def test_tokens_go_to_the_same_places(capacity: Capacity | None, kind: type, programs: pytest.MonkeyPatch) -> None:
    model, x = mixture(4, capacity), torch.randn(ROWS, 22, WIDTH, device=DEVICE)
    mine = model.router(x, Context(tokens=Tokens(22)))
    groups = experts.by_expert(mine)
    programs.undo()
    theirs = model.cpu().router(x.cpu(), Context(tokens=Tokens(22)))
    expected = experts.by_expert(theirs)
    assert mine.counted is not None
    assert theirs.counted is None
    assert type(groups) is type(expected) is kind
    assert torch.equal(mine.experts.cpu(), theirs.experts)
    assert (mine.kept is None) == (theirs.kept is None)
    if mine.kept is not None:
        assert torch.equal(mine.kept.cpu(), theirs.kept)
    names = ("place", "order") if kind is EvenGroups else ("order", "inverse", "group", "ends")
    for name in names:
        assert torch.equal(getattr(groups, name).cpu(), getattr(expected, name)), name


def test_rows_stand_for_several(programs: pytest.MonkeyPatch) -> None:
    x, group = torch.randn(50, 30, device=DEVICE, requires_grad=True), torch.randint(0, 4, (100,), device=DEVICE)
    groups, weights = Groups(group, 4), torch.randn(100, device=DEVICE, requires_grad=True)
    copies = groups.restore(groups.sort(x, copies=2), weights)
    torch.testing.assert_close(copies, x.repeat_interleave(2, 0) * weights[:, None])
    pull = torch.randn_like(copies)
    found = torch.autograd.grad(copies, (x, weights), pull)
    torch.testing.assert_close(found[0], (pull * weights[:, None]).unflatten(0, (50, 2)).sum(1))
    torch.testing.assert_close(found[1], (pull * x.repeat_interleave(2, 0)).sum(1))


@pytest.mark.skipif(INTERPRETED, reason="needs a GPU")
def test_narrow_numbers_on_a_gpu(programs: pytest.MonkeyPatch) -> None:
    model, x = mixture(8, Capacity(64)), torch.randn(ROWS, 512, WIDTH, device=DEVICE)
    with torch.autocast("cuda", torch.bfloat16):
        found = answers(model, x)
    programs.undo()
    expected = answers(model.cpu(), x.cpu())
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.float().cpu(), theirs, atol=0.1 * float(theirs.abs().max()) + 1e-3, rtol=0.1)
