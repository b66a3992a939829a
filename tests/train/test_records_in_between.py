"""What happens between recorded steps shows in them: other rates, weights, modes and watchers, other steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qkv.data.contrast import GroupRows
from qkv.train import recorded as module
from qkv.train.cost.step import AlwaysThis
from qkv.train.objectives import Loss
from qkv.train.objectives.embeddings import ContrastiveLoss, TripletLoss
from qkv.train.optimizers import adam
from qkv.train.prefetch import Prefetch
from qkv.train.recordable import numbers_of
from qkv.train.standing import StandingBatch
from qkv.train.step import Stepper
from tests.train.objectives.small import all_of, small_bert, some_texts
from tests.train.test_families_recorded_on_gpu import RECORDED
from tests.train.test_recorded import CPU, OBJECTIVE, Shapes, check_same, records, settings
from tests.train.tiny import TinyBatch, TinyBatches, TinyModel, make_batch

Between = Callable[[int, Stepper], None]


class Tape(TorchDispatchMode):
    """What operators did, to be done again in the same memory: of a record what a CPU can show, the host has no say."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, operator: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        answer = operator(*given, **(named or {}))
        self.done.append((operator, given, named or {}, answer))
        return answer

    @torch.no_grad()
    def replay(self) -> None:
        for operator, given, named, answer in self.done:
            for there, now in zip(tree_leaves(answer), tree_leaves(operator(*given, **named)), strict=True):
                if isinstance(there, Tensor) and there.data_ptr() != now.data_ptr():
                    there.copy_(now)


def taped(work: Callable[[], tuple[Tensor, ...]], *_: object) -> Callable[[], tuple[Tensor, ...]]:
    with Tape() as tape:
        given = work()
    fresh = [True]  # a record is made without being done, a tape by doing it

    def replay() -> tuple[Tensor, ...]:
        if not fresh:
            tape.replay()
        fresh.clear()
        return given

    return replay


@pytest.fixture(autouse=True)
def _tapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "captured", taped)


def run(between: Between, *, recorded: bool, asked: bool = True, updates: int = 12) -> tuple[Tensor, Tensor, Stepper]:
    """Losses and norms, and weights, of updates with something `between` them."""
    torch.manual_seed(0)
    model = TinyModel(dropout=0.3)
    stepper = Stepper(model.train(), OBJECTIVE, adam(model, learning_rate=1e-2), settings())
    if recorded:
        stepper.record(asked=asked)
    ahead = Prefetch(TinyBatches(), CPU)
    torch.manual_seed(3)
    told = []
    for step in range(updates):
        between(step, stepper)
        update = stepper.update(ahead)
        told.append(torch.stack([update.total, update.norm]))
    return torch.stack(told), torch.cat([weight.detach().flatten() for weight in model.parameters()]), stepper


def another_rate(step: int, stepper: Stepper) -> None:
    stepper.set_rate(1 / (1 + step))


def weights_of_before(step: int, stepper: Stepper) -> None:
    """As a checkpoint is read: into the same memory, moments too."""
    if step == 5:
        stepper.kept = copy.deepcopy((stepper.model.state_dict(), stepper.optimizer.state_dict()))  # type: ignore[attr-defined]
    if step == 9:
        weights, moments = stepper.kept  # type: ignore[attr-defined]
        stepper.model.load_state_dict(weights)
        stepper.optimizer.load_state_dict(moments)


def weights_elsewhere(step: int, stepper: Stepper) -> None:
    """As where a model leaves the device for a while."""
    if step in (6, 9):
        for weight in stepper.model.parameters():
            weight.data = weight.data.clone()


def an_evaluation(step: int, stepper: Stepper) -> None:
    stepper.model.eval()
    with torch.no_grad():
        OBJECTIVE(stepper.model, make_batch(step))
    stepper.model.train()


def a_part_at_rest(step: int, stepper: Stepper) -> None:
    """Without dropout, as where somebody wants one part of a model to be as in evaluation."""
    for part in stepper.model.modules():
        if isinstance(part, nn.Dropout):
            part.train(step < 6)


def gradients_left(step: int, stepper: Stepper) -> None:
    """Somebody's own, which updates add to."""
    if step == 7:
        for weight in stepper.model.parameters():
            weight.grad = torch.ones_like(weight)


@pytest.mark.parametrize(
    "between",
    [another_rate, weights_of_before, weights_elsewhere, an_evaluation, a_part_at_rest, gradients_left],
    ids=lambda each: each.__name__,
)
def test_what_happens_in_between_shows(between: Between) -> None:
    told, weights, _ = run(between, recorded=False)
    again, same, stepper = run(between, recorded=True)
    assert torch.equal(told, again)
    assert torch.equal(weights, same)
    assert records(stepper)


@pytest.mark.parametrize("watch", ["module", "backwards", "gradient", "everything"])
def test_who_comes_to_watch_sees_every_step(watch: str) -> None:
    seen: list[int] = []
    hooks: list[Any] = []

    def look(step: int, stepper: Stepper) -> None:
        def note(*_: object) -> None:
            seen.append(step)

        for hook in hooks:
            hook.remove()
        hooks.clear()
        if step in (6, 9):
            part, weight = stepper.model.get_submodule("mix"), next(stepper.model.parameters())
            if watch == "module":
                hooks.append(part.register_forward_hook(note))
            elif watch == "backwards":
                hooks.append(part.register_full_backward_pre_hook(note))
            elif watch == "gradient":
                hooks.append(weight.register_post_accumulate_grad_hook(note))
            else:
                hooks.append(nn.modules.module.register_module_forward_hook(note))

    plain, weights, _ = run(look, recorded=False)
    wanted, seen = seen, []
    again, same, stepper = run(look, recorded=True, asked=False)
    assert {6, 9} == set(seen)
    assert seen == wanted
    assert torch.equal(plain, again)
    assert torch.equal(weights, same)
    assert stepper.recorded is not None
    assert stepper.recorded.figures()["replayed"] == (12 - 2 - 2) / 12, "all but the first two and those two"


def test_steppers_of_one_model_take_turns() -> None:
    """Gradients of the one are never those of the other."""
    weights = []
    for recorded in (False, True):
        torch.manual_seed(0)
        model = TinyModel(dropout=0.3)
        steppers = [
            Stepper(model.train(), OBJECTIVE, adam(model, learning_rate=1e-2), settings(accumulate=each))
            for each in (1, 2)
        ]
        ahead = Prefetch(Shapes(), CPU)
        for stepper in steppers:
            if recorded:
                stepper.record()
        for step in range(24):
            steppers[step % 2].update(ahead)
            if step == 17:
                steppers[0].forget_records()
        weights.append(torch.cat([weight.detach().flatten() for weight in model.parameters()]))
    assert torch.equal(*weights)
    assert not records(steppers[0])
    assert records(steppers[1])


@pytest.mark.parametrize("objective", [ContrastiveLoss(), TripletLoss()], ids=lambda each: type(each).__name__)
def test_how_texts_are_grouped_is_part_of_the_kind(objective: Any) -> None:
    """Twelve texts may be four groups or six: the shapes are alike, and the losses are not."""
    batch = all_of(GroupRows(tuple(some_texts(4, seed=seed) for seed in range(3))))
    model = small_bert("embedding", pooling="mean")
    stepper = Stepper(model.train(), objective, adam(model), settings())
    stepper.record()
    batches: Any = AlwaysThis(batch, CPU)
    for _ in range(8):
        stepper.update(batches)
    assert stepper.recorded is not None
    assert stepper.recorded.kinds.asked(batch) == {"texts", "groups"}
    assert len(records(stepper)) == 1


@dataclass(frozen=True)
class Keeping(TinyBatch):
    """Computes something of its tensors once, and keeps it."""

    @cached_property
    def evens(self) -> Tensor:
        return (self.source % 2 == 0).float().mean()


def test_what_a_batch_keeps_of_its_tensors_is_not_kept_for_the_next() -> None:
    class Kept(TinyBatches):
        def __iter__(self) -> Any:
            return (Keeping(**vars(batch)) for batch in super().__iter__())

    def by_evens(model: nn.Module, batch: Any) -> Loss:
        loss = OBJECTIVE(model, batch)
        return Loss(loss.total * batch.evens, loss.count)

    assert records(check_same(TinyModel(), Kept(5), objective=by_evens))


def test_tensors_of_several_devices_make_no_standing_batch() -> None:
    batch = make_batch(0)
    with pytest.raises(TypeError, match="2 devices"):
        StandingBatch(replace(batch, source_lengths=batch.source_lengths.to("meta")))
    with pytest.raises(TypeError, match="0 devices"):
        StandingBatch(Empty())


@dataclass
class Empty:
    rows: int = 0


def test_numbers_in_a_mapping_are_numbers_of_an_objective() -> None:
    @dataclass
    class Weighted:
        shares: dict[str, float] = field(default_factory=lambda: {"one": 1.0})

    one, other = Weighted(), Weighted({"one": 0.5})
    assert numbers_of(one) == numbers_of(Weighted()) != numbers_of(other)


def test_what_an_objective_tells_in_numbers_of_the_host_is_not_recorded() -> None:
    def telling(model: nn.Module, batch: Any) -> Loss:
        loss: Any = OBJECTIVE(model, batch)
        return replace(loss, beside={"one": 1.0})

    model = TinyModel()
    stepper = Stepper(model, telling, adam(model), settings(), say=lambda _: None)
    stepper.record()
    ahead = Prefetch(TinyBatches(), CPU)
    assert [stepper.update(ahead).beside for _ in range(4)] == [{"one": 1.0}] * 4
    assert not records(stepper)


def flipped(batch: Any) -> Any:
    """The same rows from the last to the first."""
    tensors = {each.name: getattr(batch, each.name) for each in fields(batch)}
    return replace(batch, **{name: x.flip(0) for name, x in tensors.items() if isinstance(x, Tensor) and x.dim()})


@pytest.mark.slow
@pytest.mark.parametrize("case", RECORDED)
def test_every_family_learns_from_the_batch_at_hand(case: str) -> None:
    """Bit for bit, which a GPU would not show."""
    told = []
    for recorded in (False, True):
        torch.manual_seed(0)
        made, objective, batch = RECORDED[case]()
        model = copy.deepcopy(made).train()
        stepper = Stepper(model, objective, torch.optim.SGD(model.parameters(), lr=0.05), settings())
        if recorded:
            stepper.record()
        torch.manual_seed(1)
        for step in range(9):
            batches: Any = AlwaysThis(flipped(batch) if step % 2 else batch, CPU)
            update = stepper.update(batches)
        weights = [weight.detach().flatten() for weight in model.parameters()]
        told.append(torch.cat([update.total[None], update.norm[None], *weights]))
    assert torch.equal(*told)
    assert records(stepper)
