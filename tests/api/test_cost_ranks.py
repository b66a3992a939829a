"""Plans for ranks: what they say of each other, whatever the figures of a device are."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from qkv.api.cost import cost
from qkv.api.cost_ranks import cost_of_ranks, plans_for
from qkv.errors import QkvError
from qkv.train.cost.profile import DeviceProfile, shipped
from qkv.train.cost.ranks import RankCost
from qkv.train.optimizers import adafactor
from qkv.train.parallel.layout import Layout
from qkv.train.settings import TrainSettings

GPT = {"vocabulary": 512, "width": 128, "hidden": 512, "heads": 8, "layers": 1, "dropout": 0.0,
       "embedding_dropout": 0.0, "attention_dropout": 0.0}  # fmt: skip
COMMON: dict[str, Any] = {"rows": 64, "length": 256, "precision": "bfloat16"}


@pytest.fixture(scope="module")
def h200() -> DeviceProfile:
    return DeviceProfile.load(shipped()["h200"])


def planned(h200: DeviceProfile, ranks: int = 16, parallel: str = "", **more: Any) -> RankCost:
    return cost_of_ranks("gpt2", GPT, ranks=ranks, parallel=parallel, device=h200, **{**COMMON, **more})


def test_operations_are_those_of_one_device(h200: DeviceProfile) -> None:
    whole = cost("gpt2", GPT, device=h200, **COMMON)
    for parallel, recompute in (("", False), ("tensor:4", False), ("tensor:2,context:2", True)):
        found = planned(h200, parallel=parallel, recompute=recompute)
        assert found.flops == pytest.approx(whole.flops, rel=1e-6), parallel
        assert found.counted == whole.counted
        assert found.parameters == whole.parameters
        assert found.fraction_of_peak is not None
        assert 0 < found.fraction_of_peak < 1


def test_more_ranks_hold_less_each(h200: DeviceProfile) -> None:
    few, many = planned(h200, 2), planned(h200, 16)
    for name in ("parameters", "gradients", "optimizer"):
        assert getattr(many.memory, name) == pytest.approx(getattr(few.memory, name) / 8, rel=0.05)
    assert many.memory.activations < few.memory.activations / 7
    replicas = planned(h200, 16, "replicate:8")
    assert replicas.memory.parameters == few.memory.parameters
    assert planned(h200, 16, "context:4").memory.activations < planned(h200, 4).memory.activations
    assert planned(h200, 16, recompute=True).memory.total < many.memory.total


def test_groups_on_a_node_send_less_to_others(h200: DeviceProfile) -> None:
    def between(parallel: str) -> float:
        return sum(across for _, across, _ in planned(h200, 16, parallel).sent().values())

    assert planned(h200, 8).sent()["gradients"][1] == 0
    assert between("replicate:2") < between("")


def test_slower_links_take_longer(h200: DeviceProfile) -> None:
    fast, slow = planned(h200), planned(h200, links="within:10,between:0.1")
    assert fast.seconds is not None
    assert slow.seconds is not None
    assert slow.seconds > fast.seconds
    assert slow.compute_seconds == fast.compute_seconds
    assert slow.messages == fast.messages


def test_figures_as_json(h200: DeviceProfile) -> None:
    told = planned(h200, parallel="tensor:2").record()
    assert told["memory"]["total"] == sum(value for name, value in told["memory"].items() if name != "total")
    assert told["sent"]["tensor sums, forward"]["within"] > 0
    assert told["links"]["between"] == 50
    assert told["fits"] is True


@pytest.mark.slow
def test_what_does_not_fit_is_told_the_smallest_change(h200: DeviceProfile) -> None:
    plans = plans_for("gpt2", GPT, ranks=16, device=h200, **COMMON)
    once, twice = (plans.cost(Layout(), recompute).memory.total for recompute in (False, True))
    copies = plans.cost(Layout(replicate=16), False).memory.total

    def with_room(memory: int, layout: Layout, recompute: bool = False, ranks: int = 16) -> str:
        small = plans_for("gpt2", GPT, ranks=ranks, device=replace(h200, memory=memory), **COMMON)
        assert small.cost(layout, recompute).fits is False
        return small.fitting(layout, recompute)

    assert with_room((once + copies) // 2, Layout(replicate=16)).startswith("--parallel shard:16 would fit")
    assert with_room((once + twice) // 2, Layout()).startswith("--recompute would fit")
    assert "no layout of so many ranks" in with_room(1000, Layout(), True, ranks=2)


@pytest.mark.slow
def test_the_best_layouts_come_first(h200: DeviceProfile) -> None:
    found = plans_for("gpt2", GPT, ranks=4, device=h200, **COMMON).best(False)
    assert {each.ranks for each in found} == {4}
    assert len({each.layout for each in found}) == len(found) > 4
    seconds = [each.seconds for each in found]
    assert seconds == sorted(seconds)
    few = plans_for("gpt2", GPT, ranks=4, device=h200, **{**COMMON, "rows": 2}).best(False)
    assert few  # with ranks that share rows
    assert all("context" in each.layout or "tensor" in each.layout for each in few)


def test_blocks_computed_twice_keep_no_narrow_weights() -> None:
    for recompute in (False, True):
        settings = TrainSettings(steps=1, device="cpu", precision="bfloat16", recompute=recompute)
        with settings.autocast(torch.device("cpu")):
            assert torch.is_autocast_cache_enabled() is not recompute


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"ranks": 1}, "2 or more"),
        ({"rows": 8}, "16 ranks would each see rows of their own, and a batch has 8"),
        ({"parallel": "tensor:3"}, "cannot be laid out"),
        ({"ranks": 3, "parallel": "tensor:3"}, "evenly"),
        ({"parallel": "expert:2"}, "no experts"),
        ({"parallel": "wings:2"}, "wings"),
        ({"links": "between:fast"}, "no figure"),
        ({"optimizer": adafactor}, "Adafactor takes on many ranks cannot be told"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(h200: DeviceProfile, more: dict[str, Any], said: str) -> None:
    with pytest.raises(QkvError, match=said):
        planned(h200, **more)
