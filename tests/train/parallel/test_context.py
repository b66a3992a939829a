"""Ranks that share every row make of it what one process makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from qkv.errors import QkvError
from qkv.models.attention_choice import AttentionChoice
from qkv.models.catalogue import build
from qkv.models.head_choice import HeadChoice
from qkv.parts.attention.visibility import Tokens
from qkv.parts.position import ALiBi
from qkv.parts.routing import Capacity, Router
from qkv.train.compiling import compiled_blocks
from qkv.train.objectives.expert_losses import WithExpertLosses
from qkv.train.objectives.language import LanguageLoss
from qkv.train.objectives.masked import PretrainingLoss
from qkv.train.parallel.context import InStretches, SharedRows, check_context
from qkv.train.parallel.gathered_keys import GatheredKeys
from qkv.train.parallel.recompute import recompute_blocks
from tests.models.small_text import small_sizes
from tests.train.parallel.ranks import run_ranks
from tests.train.parallel.shared_rows import POSITIONS, Case, Found, all_together, alone, kept, together

CASES = {
    "gpt2": Case("gpt2", 9),
    "gpt2 in packed rows": Case("gpt2", 17, documents=4),
    "gpt2 in rows of several lengths": Case("gpt2", 12, documents=0),
    "gpt2 of 1 token": Case("gpt2", 1),
    "gpt2 of 2 tokens": Case("gpt2", 2),
    "gpt2 of the longest row": Case("gpt2", POSITIONS),
    "gpt2 in float32": Case("gpt2", 33, documents=3, dtype=torch.float32),
    "llama with grouped queries": Case("llama", 9),
    "llama in packed rows of the longest": Case("llama", POSITIONS, documents=5),
    "qwen3, whose keys are normed before they are gathered": Case("qwen3", 9),
    "gpt_neo, far and near": Case("gpt-neo", 21),
    "gpt_neo in packed rows": Case("gpt-neo", 21, documents=3),
    "a window": Case("gpt2", 19, attention="window:4"),
    "a window with holes and global tokens": Case("llama", 19, attention="window:3:2+global:2"),
    "a fixed pattern in packed rows": Case("gpt2", 23, documents=2, attention="strided:4"),
    "bert, both ways": Case("bert", 13),
    "bert of 1 token": Case("bert", 1),
    "mixtral, whose experts take every token": Case("mixtral", 11, documents=2),
}


# By how much what is kept falls with 2 ranks and with 4: keys and values are kept of the whole row.
LONG = {Case("llama", 512, dtype=torch.float32): (0.55, 0.32), Case("gpt2", 512, dtype=torch.float32): (0.72, 0.45)}


@dataclass
class Shared:
    ranks: int
    found: dict[str, list[Found]]  # by each rank
    kept: list[list[int]]  # by each rank, of each long case


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def shared(request: pytest.FixtureRequest) -> Shared:
    """All cases in the same processes."""
    answers = run_ranks(request.param, all_together, list(CASES.values()), list(LONG))
    found = {name: [cases[number] for cases, _ in answers] for number, name in enumerate(CASES)}
    return Shared(request.param, found, [kept for _, kept in answers])


@cache
def expected(name: str) -> Found:
    return alone(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_figures_and_gradients_are_those_of_one_process(name: str, shared: Shared) -> None:
    one = expected(name)
    exact = CASES[name].dtype == torch.float64
    near = {"rtol": 1e-9, "atol": 1e-11} if exact else {"rtol": 1e-4, "atol": 1e-6}
    for found in shared.found[name]:
        assert {each: count for each, (_, count) in found.figures.items()} == {
            each: count for each, (_, count) in one.figures.items()
        }
        for each, (total, _) in one.figures.items():
            assert found.figures[each][0] == pytest.approx(total, rel=1e-12 if exact else 1e-5), each
        assert found.gradients.keys() == one.gradients.keys()
        for parameter, gradient in one.gradients.items():
            torch.testing.assert_close(found.gradients[parameter], gradient, **near)
        if exact:
            for parameter, value in one.updated.items():
                torch.testing.assert_close(found.updated[parameter], value, rtol=1e-6, atol=1e-9)


def test_ranks_keep_less_for_the_way_back(shared: Shared) -> None:
    for number, (case, shares) in enumerate(LONG.items()):
        one, share = kept(case), shares[0 if shared.ranks == 2 else 1]
        for found in shared.kept:
            assert one / shared.ranks < found[number] < share * one


@pytest.mark.parametrize(
    ("family", "attention", "said"),
    [
        ("reformer", None, "this is a ReversibleStack"),
        ("longformer", None, "GlobalAttention needs a row as a whole"),
        ("big-bird", None, "BlockAttention needs a row as a whole"),
        ("gpt2", "performer:16", "SummingAttention needs a row as a whole"),
        ("gpt2", "rfa:16", "GatedAttention needs a row as a whole"),
        ("gpt2", "lsh:2:4", "SharedAttention needs a row as a whole"),
        ("bert", "linformer:4", "needs a row as a whole"),
    ],
)
def test_attention_that_needs_whole_rows_is_refused(family: str, attention: str | None, said: str) -> None:
    head = HeadChoice("masked" if family in ("longformer", "big-bird", "bert") else "language")
    model = build(family, small_sizes(family), head, attention=AttentionChoice.of(attention))
    with pytest.raises(QkvError, match=said):
        check_context(model, LanguageLoss())


def test_models_and_objectives_that_cannot_share_rows_are_refused() -> None:
    model = Case("mixtral", 8).model()
    with pytest.raises(QkvError, match="from which PretrainingLoss cannot be computed"):
        check_context(model, PretrainingLoss())
    with pytest.raises(QkvError, match="this is a Linear"):
        check_context(torch.nn.Linear(1, 1), LanguageLoss())
    check_context(model, WithExpertLosses(LanguageLoss()))
    next(module for module in model.modules() if isinstance(module, Router)).capacity = Capacity(3)
    with pytest.raises(QkvError, match="Experts with a capacity"):
        check_context(model, LanguageLoss())
    model.stack.bias = ALiBi(2)
    with pytest.raises(QkvError, match="adds a bias to the scores"):
        check_context(model, LanguageLoss())


def test_whole_batches_and_caches_are_refused(alone_in_a_mesh: SharedRows) -> None:
    case, rows = Case("gpt2", 8), alone_in_a_mesh
    model, batch = case.model(), case.batch()
    with pytest.raises(QkvError, match=r"their part of a LanguageBatch"):
        InStretches(LanguageLoss(), rows)(model, batch)
    ids = batch.ids[:, :-1]
    with pytest.raises(QkvError, match="give no cache"), rows.reading(model):
        model(ids, cache=model.new_cache(8))
    with pytest.raises(QkvError, match="no tokens follow"):
        GatheredKeys(Tokens(8), rows.share, rows.mesh).advance(Tokens(8))
    assert torch.equal(model(ids), case.model()(ids)), "outside the model is as it was"


@pytest.fixture
def alone_in_a_mesh() -> Iterator[SharedRows]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield SharedRows(init_device_mesh("cpu", (1,)))
    dist.destroy_process_group()


def test_one_rank_that_shares_rows_with_itself_is_one_process(alone_in_a_mesh: SharedRows) -> None:
    case = CASES["llama in packed rows of the longest"]
    found, one = together(case, alone_in_a_mesh), alone(case)
    assert found.figures["loss"] == pytest.approx(one.figures["loss"])
    for parameter, gradient in one.gradients.items():
        torch.testing.assert_close(found.gradients[parameter], gradient)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True])
def test_blocks_are_compiled_whole(
    alone_in_a_mesh: SharedRows, monkeypatch: pytest.MonkeyPatch, recompute: bool
) -> None:
    compile_ = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda code, dynamic: compile_(code, dynamic=dynamic, fullgraph=True, backend="aot_eager")
    )
    case = CASES["gpt2 in packed rows"]
    one, model = alone(case), case.model()
    with compiled_blocks(model), recompute_blocks(model) if recompute else nullcontext():
        loss = InStretches(case.objective(), alone_in_a_mesh)(model, alone_in_a_mesh.part(case.batch()))
        (loss.total / loss.count).backward()
    for parameter, gradient in one.gradients.items():
        torch.testing.assert_close(dict(model.named_parameters())[parameter].grad, gradient)
