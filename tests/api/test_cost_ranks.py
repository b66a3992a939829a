"""Plans for ranks: what they say of each other, whatever the figures of a device are."""

from typing import Any

import pytest
import torch

from qkv.api.cost import cost, new_model, typical_step
from qkv.api.cost_ranks import Plans, RankCost, cost_of_ranks
from qkv.errors import QkvError
from qkv.train.cost.profile import DeviceProfile, shipped
from qkv.train.cost.step import AlwaysThis
from qkv.train.optimizers import adafactor, adamw
from qkv.train.parallel.team import team_of
from qkv.train.parallel.world import current_world
from qkv.train.settings import TrainSettings
from qkv.train.step import Stepper
from tests.train.parallel.ranks import run_ranks

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
        assert found.flops == pytest.approx(whole.flops, rel=0.01), parallel
        assert found.counted == whole.counted
        assert found.parameters == whole.parameters
        assert found.fraction_of_peak is not None
        assert 0 < found.fraction_of_peak < 1


def test_more_ranks_hold_less_each(h200: DeviceProfile) -> None:
    few, many = planned(h200, 2), planned(h200, 16)
    for name in ("weights", "gradients", "optimizer"):
        assert getattr(many.memory, name) == pytest.approx(getattr(few.memory, name) / 8, rel=0.05)
    assert many.memory.activations < few.memory.activations / 7
    assert planned(h200, 16, "replicate:8").memory.weights == few.memory.weights
    assert planned(h200, 16, "context:4").memory.activations == planned(h200, 4).memory.activations // 4
    assert planned(h200, 16, recompute=True).memory.activations < many.memory.activations


@pytest.mark.parametrize("parallel", ["", "replicate:2"])
def test_ranks_hold_what_was_foretold(parallel: str) -> None:
    held = run_ranks(2, bytes_held, parallel)
    plan = cost_of_ranks("gpt2", GPT, ranks=2, parallel=parallel, rows=4, length=32, device="cpu", precision="float32")
    assert held == [(plan.memory.weights, plan.memory.gradients)] * 2
    assert plan.memory.optimizer == pytest.approx(2 * plan.memory.weights, rel=1e-3)


def bytes_held(parallel: str) -> tuple[int, int]:
    """Parameters and gradients that a rank has after a step."""
    model = new_model("gpt2", GPT, None, None, 32)
    objective, batch = typical_step(model, 2, 32, None)
    settings = TrainSettings(steps=1, device="cpu", parallel=parallel)
    team = team_of(current_world(), model, objective, settings)
    optimizer = adamw(model)
    gradients: list[int] = []
    optimizer.register_step_pre_hook(lambda *_: gradients.append(own_bytes(each.grad for each in model.parameters())))
    batches: Any = AlwaysThis(team.part(batch), torch.device("cpu"))
    Stepper(model, team.objective(objective), optimizer, settings, team=team).update(batches)
    return own_bytes(model.parameters()), gradients[-1]


def own_bytes(tensors: Any) -> int:
    """Of the memory behind a rank's parts, which several may share."""
    storages = [each.to_local().untyped_storage() for each in tensors]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())


def test_ranks_send_what_rings_must(h200: DeviceProfile) -> None:
    bytes_of = 4 * planned(h200).parameters
    near = planned(h200, 8).sent  # parameters forward and back, gradients once
    assert near["parameters"] == pytest.approx((2 * bytes_of * 7 / 8, 0))
    assert near["gradients"] == pytest.approx((bytes_of * 7 / 8, 0))
    far = planned(h200).sent["gradients"]  # two nodes: one of eight neighbours is on the other one
    assert sum(far) == pytest.approx(bytes_of * 15 / 16)
    assert far[1] == pytest.approx(far[0] / 7)
    copies = planned(h200, 16, "replicate:2").sent
    assert copies["gradients of replicas"] == pytest.approx((0, bytes_of / 8), rel=0.01)
    assert sum(across for _, across in copies.values()) < sum(across for _, across in planned(h200).sent.values())
    # Two parts a block, each summed forward and back, which takes a ring twice its bytes.
    stream = 64 // 4 * 256 * 128 * 2
    assert planned(h200, 8, "tensor:2").sent["tensor sums"] == (2 * 2 * 2 * stream / 2, 0)


def test_slower_links_take_longer(h200: DeviceProfile) -> None:
    fast, slow = planned(h200), planned(h200, links="within:10,between:0.1")
    assert fast.seconds is not None
    assert slow.seconds is not None
    assert slow.seconds > fast.seconds
    assert slow.waiting_seconds - fast.waiting_seconds == pytest.approx(slow.seconds - fast.seconds)  # type: ignore
    assert slow.sent == fast.sent


def test_the_best_layouts_come_first(h200: DeviceProfile) -> None:
    found = Plans("gpt2", GPT, ranks=4, device=h200, **COMMON).best(False)
    assert {each.ranks for each in found} == {4}
    assert len({each.layout for each in found}) == len(found) > 4
    seconds = [each.seconds for each in found]
    assert seconds == sorted(seconds)  # type: ignore[type-var]
    few = Plans("gpt2", GPT, ranks=4, device=h200, **{**COMMON, "rows": 2}).best(False)
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
        ({"parallel": "expert:2"}, "leave out expert"),
        ({"parallel": "wings:2"}, "wings"),
        ({"links": "between:fast"}, "no figure"),
        ({"optimizer": adafactor}, "Adafactor takes on many ranks cannot be told"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(h200: DeviceProfile, more: dict[str, Any], said: str) -> None:
    with pytest.raises(QkvError, match=said):
        planned(h200, **more)
