"""Recorded steps give what plain ones give, bit for bit: here by the work itself, in the memory of a graph."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.data.packing import LanguageBatch
from qkv.data.pairs import PairBatch
from qkv.models.catalogue import build
from qkv.models.gpt2 import GPT2Sizes
from qkv.models.switch import SIZES
from qkv.train import kinds
from qkv.train import recorded as module
from qkv.train.adjust import FallingTemperature, HeadFirst
from qkv.train.objectives import Loss, SequenceToSequenceLoss
from qkv.train.objectives.expert_losses import with_expert_losses
from qkv.train.objectives.language import LanguageLoss
from qkv.train.optimizers import adam
from qkv.train.prefetch import Prefetch
from qkv.train.settings import TrainSettings
from qkv.train.standing import HostAsks, Number, StandingBatch, kind_of
from qkv.train.step import Stepper
from tests.train.tiny import TinyBatches, TinyModel, make_batch, quiet, train_tiny

CPU = torch.device("cpu")
OBJECTIVE = SequenceToSequenceLoss(smoothing=0.1)


class Shapes(TinyBatches):
    """Batches of several shapes, whose counts differ."""

    widths = (6, 6, 8, 6, 8, 8, 5)

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.index += 1
            yield make_batch(self.index, width=self.widths[self.index % len(self.widths)])


def settings(**more: Any) -> TrainSettings:
    return TrainSettings(**{"steps": 1, "device": "cpu", **more})


def trained(
    model: nn.Module, batches: Any, *, recorded: bool, objective: Any = OBJECTIVE, updates: int = 12, **more: Any
) -> tuple[list[Any], dict[str, Tensor], Stepper]:
    """What updates tell, and the weights after them."""
    model = copy.deepcopy(model).train()
    said: list[str] = []
    stepper = Stepper(model, objective, adam(model, learning_rate=1e-2), settings(**more), say=said.append)
    if recorded:
        stepper.record()
    ahead = Prefetch(batches, CPU)
    torch.manual_seed(3)
    told = []
    for _ in range(updates):
        update = stepper.update(ahead)
        told.append([update.count, update.total.clone(), update.norm.clone(), *update.beside.values()])
    told.append([*said, torch.get_rng_state()])
    return told, model.state_dict(), stepper


def records(stepper: Stepper) -> list[Any]:
    assert stepper.recorded is not None
    return stepper.recorded.kinds.recorded


def check_same(model: nn.Module, batches: Any, **options: Any) -> Stepper:
    plain, weights, _ = trained(model, copy.deepcopy(batches), recorded=False, **options)
    again, same, stepper = trained(model, copy.deepcopy(batches), recorded=True, **options)
    assert [len(each) for each in plain] == [len(each) for each in again]
    for before, after in zip(plain, again, strict=True):
        for one, other in zip(before, after, strict=True):
            assert torch.equal(torch.as_tensor(one).nan_to_num(7), torch.as_tensor(other).nan_to_num(7))
    for name, weight in weights.items():
        assert torch.equal(weight, same[name]), name
    return stepper


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_records_give_what_plain_steps_give(accumulate: int, dropout: float) -> None:
    stepper = check_same(TinyModel(dropout=dropout), Shapes(), accumulate=accumulate)
    found = records(stepper)
    assert len(found) == 3 if accumulate == 3 else len(found) >= 2
    if accumulate == 1:
        assert sum(kind.first is not None for kind in found) == 1, "the others add to the gradients of the first"
    assert all(parameter.grad is None for parameter in stepper.model.parameters())


def test_an_update_that_is_not_finite_is_skipped_by_records_too() -> None:
    class Bad:
        def __call__(self, model: nn.Module, batch: Any) -> Loss:
            loss = OBJECTIVE(model, batch)
            return Loss(loss.total * torch.where(batch.source[0, 0] > 7, torch.nan, 1.0), loss.count)

    stepper = check_same(TinyModel(), TinyBatches(5), objective=Bad(), updates=15)
    assert records(stepper)


class Sometimes(nn.Module):
    """Of two parameters one is used by wide batches only."""

    def __init__(self) -> None:
        super().__init__()
        self.tiny, self.wide = TinyModel(dropout=0.0), nn.Parameter(torch.ones(8))

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        logits = self.tiny(source, lengths, target)
        return logits * self.wide.mean() if source.shape[1] == 8 else logits


@pytest.mark.parametrize("accumulate", [1, 2])
def test_what_a_batch_does_not_use_gets_no_gradient(accumulate: int) -> None:
    """A gradient of 0 would move the weight on by its momentum."""
    assert records(check_same(Sometimes(), Shapes(), accumulate=accumulate))


def pairs(number: int, *, full: bool) -> PairBatch:
    torch.manual_seed(number)
    lengths = torch.full((4,), 7) if full else torch.randint(3, 7, (4,))
    return PairBatch(
        torch.randint(3, 32, (4, 6)), torch.full((4,), 6), torch.randint(3, 32, (4, 7)), lengths.clamp_min(2)
    )


@dataclass
class Given:
    batches: list[Any]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def test_counts_flow_into_the_loss_of_experts() -> None:
    sizes = replace(SIZES["base-8"], vocabulary=32, width=16, key_width=8, hidden=32, heads=2, experts=4)
    model = build("switch", replace(sizes, encoder_layers=2, decoder_layers=2))
    batches = Given([pairs(number, full=False) for number in range(6)])
    assert len({batch.predicted for batch in batches.batches}) > 2
    stepper = check_same(model, batches, objective=with_expert_losses(model, OBJECTIVE), updates=8)
    assert len(records(stepper)) == 1


def test_packed_rows_are_a_kind_of_their_own() -> None:
    def rows(number: int) -> LanguageBatch:
        torch.manual_seed(number)
        documents = torch.ones(3, 9, dtype=torch.long)
        documents[:, 4 + number % 2 :] += number % 3 > 0
        return LanguageBatch(torch.randint(0, 32, (3, 9)), documents, number % 3 > 0, 24 - 3 * (number % 3 > 0), 99)

    model = build("gpt2", GPT2Sizes(vocabulary=32, positions=16, width=16, hidden=32, heads=2, layers=2))
    stepper = check_same(model, Given([rows(number) for number in range(6)]), objective=LanguageLoss(), updates=14)
    assert len(records(stepper)) == 2


def test_a_count_that_the_host_decides_by_is_part_of_the_kind() -> None:
    def halved(model: nn.Module, batch: Any) -> Loss:
        loss = OBJECTIVE(model, batch)
        return Loss(loss.total / max(1, batch.target_tokens), 1)

    stepper = check_same(TinyModel(), TinyBatches(1), objective=halved)
    assert stepper.recorded is not None
    assert stepper.recorded.kinds.asked(make_batch(0)) == {"target_tokens"}


def test_a_number_says_no_to_the_host_and_yes_to_tensors() -> None:
    number = Number.of("rows", CPU)
    number.fill_(3)
    product = number * torch.ones(())
    assert (product.item(), product.dtype, type(product)) == (3.0, torch.float32, Tensor)
    for ask in (bool, int, float, lambda x: max(1, x), lambda x: [0] * x):
        with pytest.raises(HostAsks, match="rows"):
            ask(number)


def test_kinds_tell_shapes_and_flags_apart_but_no_counts() -> None:
    first, second = make_batch(0), make_batch(1)
    assert first.target_tokens != second.target_tokens
    assert kind_of(first) == kind_of(second) != kind_of(make_batch(0, width=7))
    assert kind_of(first, ["target_tokens"]) != kind_of(second, ["target_tokens"])
    full = pairs(0, full=True)
    assert kind_of(full) != kind_of(replace(full, padded=True))
    standing = StandingBatch(first)
    standing.fill(second)
    assert torch.equal(standing.batch.target, second.target)


def test_what_cannot_be_recorded_is_said_once_and_trained_on_plainly() -> None:
    """On a CPU nothing waits; an error stands for what a GPU would say."""

    class Waiting:
        def __call__(self, model: nn.Module, batch: Any) -> Loss:
            loss = OBJECTIVE(model, batch)
            if isinstance(batch.target_tokens, Number):
                torch.rand(3)
                raise RuntimeError("called a synchronizing CUDA operation\nand more")
            return loss

    plain, weights, _ = trained(TinyModel(), Shapes(), recorded=False, objective=Waiting())
    again, same, stepper = trained(TinyModel(), Shapes(), recorded=True, objective=Waiting())
    *said, state = again[-1]
    assert len(said) == 1
    assert "called a synchronizing CUDA operation'" in said[0]
    assert torch.equal(state, plain[-1][-1]), "the random numbers of the attempt are given back"
    assert all(torch.equal(weight, same[name]) for name, weight in weights.items())
    assert not records(stepper)


def test_a_record_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    _, weights, _ = trained(TinyModel(), Shapes(), recorded=False, accumulate=2)
    monkeypatch.setattr(module, "captured", failing)
    again, same, stepper = trained(TinyModel(), Shapes(), recorded=True, accumulate=2)
    assert "not permitted" in again[-1][0]
    assert all(torch.equal(weight, same[name]) for name, weight in weights.items())
    assert not records(stepper)


def test_weights_that_moved_are_recorded_anew() -> None:
    model = TinyModel(dropout=0.0)
    stepper = Stepper(model, OBJECTIVE, adam(model), settings())
    stepper.record()
    ahead = Prefetch(TinyBatches(), CPU)
    for _ in range(4):
        stepper.update(ahead)
    (kind,) = records(stepper)
    before = kind.first
    model.mix.weight.data = model.mix.weight.data.clone()
    stepper.update(ahead)
    assert kind.first is not None
    assert kind.first is not before


def test_a_teacher_whose_tables_moved_is_recorded_anew() -> None:
    @dataclass
    class Taught:
        teacher: TinyModel

        def __call__(self, model: nn.Module, batch: Any) -> Loss:
            return OBJECTIVE(model, batch)

    model, objective = TinyModel(dropout=0.0), Taught(TinyModel())
    stepper = Stepper(model, objective, adam(model), settings())
    stepper.record()
    ahead = Prefetch(TinyBatches(), CPU)
    for _ in range(4):
        stepper.update(ahead)
    before = records(stepper)[0].first
    objective.teacher.mix.weight.data = objective.teacher.mix.weight.data.clone()
    stepper.update(ahead)
    assert records(stepper)[0].first is not before


def test_few_kinds_are_recorded_and_one_in_use_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "MOST", 2)
    assert len(records(check_same(TinyModel(), Shapes(), updates=30))) == 2
    monkeypatch.setattr(kinds, "RECENT", 1)
    assert len(records(check_same(TinyModel(), Shapes(), updates=30))) == 2


def test_which_weights_learn_shows() -> None:
    model = TinyModel()
    stepper = Stepper(model, OBJECTIVE, adam(model), settings())
    stepper.record()
    ahead = Prefetch(TinyBatches(), CPU)
    for step in range(10):
        model.mix.requires_grad_(step >= 5)
        before = model.mix.weight.clone()
        stepper.update(ahead)
        assert torch.equal(model.mix.weight, before) == (step < 5)
    assert HeadFirst(1).shows
    assert not hasattr(FallingTemperature(), "shows")


def test_a_run_says_that_it_records_nothing_on_a_cpu(tmp_path: Path) -> None:
    said: list[str] = []
    reporter = quiet()
    reporter.say = said.append  # type: ignore[method-assign]
    train_tiny(tmp_path / "run", steps=3, record=True, reporter=reporter)
    assert sum("not recorded where there is no GPU" in each for each in said) == 1


def out_of_memory(*_: object) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory.")


@dataclass
class Falling:
    """An objective that reads a number of its own, which somebody changes between updates."""

    factor: float = 1.0

    def __call__(self, model: nn.Module, batch: Any) -> Loss:
        loss = OBJECTIVE(model, batch)
        return Loss(loss.total * self.factor, loss.count)


def test_a_number_of_the_objective_that_changes_is_not_replayed_as_it_was() -> None:
    weights = []
    for recorded in (False, True):
        torch.manual_seed(0)
        model, objective = TinyModel(dropout=0.0), Falling()
        stepper = Stepper(model, objective, torch.optim.SGD(model.parameters(), lr=0.1), settings(clip=None))
        if recorded:
            stepper.record()
        ahead = Prefetch(TinyBatches(), CPU)
        for step in range(12):
            objective.factor = 0.5 if step >= 6 else 1.0
            stepper.update(ahead)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert len(records(stepper)) == 2
    assert torch.equal(*weights)


def test_batches_that_all_differ_are_not_even_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "StandingBatch", out_of_memory)
    monkeypatch.setattr(kinds, "REMEMBERED", 4)

    class Wider(TinyBatches):
        def __iter__(self) -> Iterator[Any]:
            while True:
                self.index += 1
                yield make_batch(self.index, width=5 + self.index)

    told, _, stepper = trained(TinyModel(), Wider(), recorded=True, updates=8)
    assert stepper.recorded is not None
    assert stepper.recorded.figures()["replayed"] == 0.0
    assert "no two are of one kind" in told[-1][0]


def test_what_is_refused_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRIES", 2)
    tries = []

    class Waiting:
        def __call__(self, model: nn.Module, batch: Any) -> Loss:
            if isinstance(batch.target_tokens, Number):
                tries.append(batch.source.shape)
                raise RuntimeError("called a synchronizing CUDA operation")
            return OBJECTIVE(model, batch)

    trained(TinyModel(), Shapes(), recorded=True, objective=Waiting(), updates=20)
    assert len(tries) == len(set(tries)) == 2 < len(set(Shapes.widths))


@pytest.mark.parametrize("fails", ["rehearsal", "record", "first replay"])
def test_too_little_memory_for_records_is_no_end(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, weights, _ = trained(TinyModel(dropout=0.3), Shapes(), recorded=False, accumulate=2)

    def half_done(work: Any, *_: object) -> Any:
        def replay() -> Any:
            torch.rand(7)
            out_of_memory()

        return replay

    if fails == "rehearsal":
        monkeypatch.setattr(module, "StandingBatch", out_of_memory)
    else:
        monkeypatch.setattr(module, "captured", out_of_memory if fails == "record" else half_done)
    again, same, stepper = trained(TinyModel(dropout=0.3), Shapes(), recorded=True, accumulate=2)
    *said, chance = again[-1]
    assert said == [module.NO_ROOM]
    assert torch.equal(chance, plain[-1][-1])
    assert all(torch.equal(weight, same[name]) for name, weight in weights.items())
    assert not records(stepper)


def test_an_evaluation_without_memory_beside_records_is_made_without_them() -> None:
    model, said = TinyModel(), list[str]()
    stepper = Stepper(model, OBJECTIVE, adam(model), settings(), say=said.append)
    stepper.record()
    ahead, tries = Prefetch(TinyBatches(), CPU), list[int]()

    def evaluate(_: nn.Module) -> dict[str, float]:
        tries.append(len(records(stepper)))
        return out_of_memory() if tries[-1] else {"loss": 1.0}

    roomy = stepper.with_room(evaluate)
    for _ in range(2):
        for _ in range(4):
            stepper.update(ahead)
        assert len(records(stepper)) == 1
        assert roomy(model) == {"loss": 1.0}
    assert tries == [1, 0, 0], "from the second on, records are given up beforehand"
    assert len(said) == 1
    with pytest.raises(torch.OutOfMemoryError):
        stepper.with_room(out_of_memory)(model)
