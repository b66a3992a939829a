"""Ranks that share rows beside ranks that share all else: an update is that of one process."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.data.packing import LanguageBatch
from qkv.train.objectives.expert_losses import WithExpertLosses
from qkv.train.parallel.ranks import Ranks
from qkv.train.parallel.recompute import recompute_blocks
from qkv.train.parallel.team import Team
from qkv.train.parallel.world import current_world
from qkv.train.settings import TrainSettings
from tests.train.parallel.ranks import run_ranks
from tests.train.parallel.shared_rows import Case


@dataclass(frozen=True)
class Shared:
    """A case, how ranks share it, and whether blocks are computed once more."""

    layout: str
    case: Case
    recompute: bool = False


CASES = {
    "sharded, blocks computed once more": Shared("context:2", Case("gpt2", 17, documents=3), recompute=True),
    "replicated": Shared("replicate:2,context:2", Case("llama", 9)),
    "with tensor ranks": Shared("context:2,tensor:2", Case("gpt2", 13, documents=2), recompute=True),
    "with tensor ranks, both ways": Shared("context:2,tensor:2", Case("bert", 9)),
    "experts and their losses": Shared("context:4", Case("mixtral", 11, documents=2), recompute=True),
    "experts on different ranks": Shared("context:2,expert:2", Case("mixtral", 10)),
}


def updated(shared: Shared, several: bool) -> tuple[float, int, dict[str, Tensor]]:
    """The loss, what was counted, and the parameters after a plain step down."""
    model, objective, batch = shared.case.model().train(), shared.case.objective(), shared.case.batch()
    if shared.case.family == "mixtral":
        objective = WithExpertLosses(objective, balance=0.5, router_z=0.1)
    settings = TrainSettings(steps=1, device="cpu", parallel=shared.layout if several else "")
    team = Ranks(current_world(), model, objective, settings) if several else Team()
    if isinstance(team, Ranks):
        batch = team.part(rows_of(batch, team.meshes.data_rank, team.layout.data))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    found: list[Any] = []

    def work() -> Tensor:
        found.append(team.objective(objective)(model, batch))
        total: Tensor = found[0].total
        return total

    with recompute_blocks(model) if shared.recompute and several else nullcontext():
        total = team.inside(work)
        count = team.counted(found[0].count, 0.0)[0]
        (total / count).backward()
    optimizer.step()
    ready = team.finished(model)
    loss = float(team.total(total.detach()))
    return loss, count, {name: each.detach() for name, each in ready.named_parameters()}


def rows_of(batch: Any, rank: int, ranks: int) -> Any:
    """The rows of a data rank; unequal numbers of them, where three are shared by two."""
    if ranks == 1:
        return batch
    assert isinstance(batch, LanguageBatch)
    ids, documents = (each.tensor_split(ranks)[rank] for each in (batch.ids, batch.documents))
    part = replace(batch, ids=ids, documents=documents)
    return replace(part, predicted=int(part.wanted[1].sum()))


def all_updated(cases: list[Shared]) -> list[tuple[float, int, dict[str, Tensor]]]:
    return [updated(case, several=True) for case in cases]


@pytest.fixture(scope="module")
def on_ranks() -> dict[str, list[tuple[float, int, dict[str, Tensor]]]]:
    answers = run_ranks(4, all_updated, list(CASES.values()))
    return {name: [answer[number] for answer in answers] for number, name in enumerate(CASES)}


@pytest.mark.parametrize("name", CASES)
def test_an_update_is_that_of_one_process(name: str, on_ranks: dict[str, Any]) -> None:
    loss, count, expected = updated(CASES[name], several=False)
    for its_loss, its_count, found in on_ranks[name]:
        assert its_count == count
        assert its_loss == pytest.approx(loss, rel=1e-10)
        assert found.keys() == expected.keys()
        for parameter, value in expected.items():
            torch.testing.assert_close(found[parameter], value, rtol=1e-9, atol=1e-10)
