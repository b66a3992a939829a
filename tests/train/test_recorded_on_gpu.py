"""Recorded steps on a GPU: the losses, weights and random numbers of plain ones.

Kernels are the same in a record, but some add in another order each time they run: numbers are compared within float
error, and the state of the random numbers bit for bit. Other random numbers would show: dropout of other units moves a
loss by far more.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.data.packing import LanguageBatch
from qkv.data.pairs import PairBatch
from qkv.models import switch, t5
from qkv.models.catalogue import build
from qkv.models.gpt2 import GPT2Sizes
from qkv.models.llama import LlamaSizes
from qkv.train.compiling import compiled_blocks
from qkv.train.float8.products import float8_products
from qkv.train.objectives import Loss, SequenceToSequenceLoss
from qkv.train.objectives.expert_losses import with_expert_losses
from qkv.train.objectives.language import LanguageLoss
from qkv.train.optimizers import adamw
from qkv.train.prefetch import Prefetch
from qkv.train.recorded import NO_ROOM
from qkv.train.settings import TrainSettings
from qkv.train.step import Stepper
from tests.train.test_recorded import Given

pytestmark = pytest.mark.gpu

STEPS = 10
SMALL = {"vocabulary": 64, "width": 64, "key_width": 16, "hidden": 128, "heads": 4}
DEEP = {"encoder_layers": 2, "decoder_layers": 2}


def rows(length: int) -> Given:
    generator = torch.Generator().manual_seed(0)
    batches = []
    for number in range(4):
        documents = torch.ones(4, length + 1, dtype=torch.long)
        documents[0, length - 8 * number :] = 0
        real = (documents[:, 1:] > 0).sum().item()
        ids = torch.randint(1, 64, (4, length + 1), generator=generator)
        batches.append(LanguageBatch(ids, documents, False, int(real), int(real)))
    return Given(batches)


def pairs() -> Given:
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(4):
        source, target = (torch.randint(1, 64, (4, size), generator=generator) for size in (32, 25))
        lengths = torch.randint(12, 25, (4,), generator=generator)
        batches.append(PairBatch(source, torch.full((4,), 32), target, lengths))
    return Given(batches)


def case(name: str, dropout: float) -> tuple[nn.Module, Any, Given]:
    torch.manual_seed(0)
    if name == "gpt2":
        sizes = GPT2Sizes(vocabulary=64, positions=128, width=64, hidden=128, heads=4, layers=2)
        sizes = replace(sizes, dropout=dropout, embedding_dropout=dropout, attention_dropout=dropout)
        return build("gpt2", sizes), LanguageLoss(), rows(64)
    if name == "llama":
        wide = LlamaSizes(
            vocabulary=64, positions=2048, width=64, hidden=128, heads=2, key_value_heads=2, layers=2, window=128,
            attention_dropout=dropout,
        )  # fmt: skip
        return build("llama", wide), LanguageLoss(), rows(1024)
    dense, sparse = t5.SIZES["base"], switch.SIZES["base-8"]
    chosen: Any = replace(dense, **SMALL, **DEEP) if name == "t5" else replace(sparse, **SMALL, **DEEP, experts=4)
    model = build(name, replace(chosen, dropout=dropout))
    return model, with_expert_losses(model, SequenceToSequenceLoss(smoothing=0.0)), pairs()


def stepper_of(model: nn.Module, objective: Any, *, recorded: bool, said: list[str], **more: Any) -> Stepper:
    settings = TrainSettings(**{"steps": 1, "device": "cuda", "precision": "bfloat16", "record": recorded, **more})
    return Stepper(model, objective, adamw(model, learning_rate=1e-4), settings, say=said.append)


Between = Callable[[nn.Module, Callable[[], Any], int], None]  # the model, an evaluation of it, the step


def nothing(model: nn.Module, evaluate: Callable[[], Any], step: int) -> None: ...


def trained(
    name: str, dropout: float, *, recorded: bool, compiled: bool = False, between: Between = nothing, **more: Any
) -> tuple[Any, ...]:
    model, objective, batches = case(name, dropout)
    model.cuda().train()
    said: list[str] = []
    stepper = stepper_of(model, objective, recorded=recorded, said=said, **more)
    ahead = Prefetch(batches, torch.device("cuda"))
    torch.manual_seed(1)
    narrow = float8_products(model) if more.get("precision") == "float8" else nullcontext()
    with narrow, compiled_blocks(model) if compiled else nullcontext():
        updates = []
        for step in range(STEPS):
            between(model, lambda: objective(model, batches.batches[0].to("cuda")), step)
            updates.append(stepper.update(ahead))
    told = torch.stack([torch.stack([update.total, update.norm, *update.beside.values()]) for update in updates])
    counts = [update.count for update in updates]
    return told.cpu(), counts, weights_of(model), torch.cuda.get_rng_state(), said, stepper


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().cpu().clone() for name, weight in model.named_parameters()}


def check(plain: tuple[Any, ...], again: tuple[Any, ...]) -> None:
    assert again[4] == []
    assert again[5].recorded is not None
    assert again[5].recorded.kinds.recorded
    assert plain[1] == again[1]
    assert torch.equal(plain[3], again[3])
    torch.testing.assert_close(again[0], plain[0], rtol=2e-3, atol=2e-3)
    for name, weight in plain[2].items():
        torch.testing.assert_close(again[2][name], weight, rtol=0, atol=5e-4)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("name", ["gpt2", "t5", "switch", "llama"])
def test_records_give_what_plain_steps_give(name: str, dropout: float) -> None:
    check(trained(name, dropout, recorded=False), trained(name, dropout, recorded=True))


def emptied(model: nn.Module, evaluate: Callable[[], Any], step: int) -> None:
    torch.cuda.empty_cache()


def evaluated(model: nn.Module, evaluate: Callable[[], Any], step: int) -> None:
    model.eval()
    with torch.no_grad():
        evaluate()
    model.train()


def moved(model: nn.Module, evaluate: Callable[[], Any], step: int) -> None:
    if step == STEPS // 2:
        model.cpu()
        model.cuda()


def without_dropout(model: nn.Module, evaluate: Callable[[], Any], step: int) -> None:
    if step == STEPS // 2:
        for part in model.modules():
            part.train(part is model)


@pytest.mark.parametrize("between", [emptied, evaluated, moved, without_dropout], ids=lambda each: each.__name__)
def test_what_happens_in_between_shows(between: Between) -> None:
    plain, again = (trained("gpt2", 0.2, recorded=each, between=between) for each in (False, True))
    check(plain, again)


def test_records_add_gradients_up() -> None:
    check(trained("gpt2", 0.2, recorded=False, accumulate=3), trained("gpt2", 0.2, recorded=True, accumulate=3))


def test_compiled_blocks_are_recorded() -> None:
    check(trained("gpt2", 0.2, recorded=False, compiled=True), trained("gpt2", 0.2, recorded=True, compiled=True))


def test_products_in_8_bits_are_recorded() -> None:
    wanted = {"precision": "float8"}
    check(trained("gpt2", 0.2, recorded=False, **wanted), trained("gpt2", 0.2, recorded=True, **wanted))


@pytest.mark.parametrize("name", ["gpt2", "switch"])
def test_nobody_need_ask(name: str) -> None:
    check(trained(name, 0.2, recorded=False), trained(name, 0.2, recorded=True, record=None))


def test_records_that_would_leave_too_little_memory_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = trained("gpt2", 0.2, recorded=False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (0, 1))
    told, counts, _, chance, said, stepper = trained("gpt2", 0.2, recorded=True, record=None)
    assert said == [NO_ROOM]
    assert not stepper.recorded.kinds.recorded
    assert counts == plain[1]
    assert torch.equal(chance, plain[3])
    torch.testing.assert_close(told, plain[0], rtol=2e-3, atol=2e-3)


def test_memory_of_records_is_given_back() -> None:
    *_, stepper = trained("gpt2", 0.2, recorded=True)
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved()
    stepper.forget_records()
    assert torch.cuda.memory_reserved() < held


def test_a_run_that_goes_on_records_anew_and_draws_the_same() -> None:
    whole = trained("gpt2", 0.2, recorded=True)
    model, objective, batches = case("gpt2", 0.2)
    model.cuda().train()
    torch.manual_seed(1)
    ahead = Prefetch(batches, torch.device("cuda"))
    before = stepper_of(model, objective, recorded=True, said=[])
    totals = [before.update(ahead).total for _ in range(STEPS // 2)]
    state, chance = copy.deepcopy(before.optimizer.state_dict()), torch.cuda.get_rng_state()
    torch.rand(5, device="cuda")
    after = stepper_of(model, objective, recorded=True, said=[])
    after.optimizer.load_state_dict(state)
    torch.cuda.set_rng_state(chance)
    totals += [after.update(ahead).total for _ in range(STEPS - STEPS // 2)]
    assert torch.equal(torch.cuda.get_rng_state(), whole[3])
    torch.testing.assert_close(torch.stack(totals).cpu(), whole[0][:, 0], rtol=2e-3, atol=2e-3)


class Waiting:
    """Waits for the device; or does what only a record forbids."""

    def __init__(self, objective: Any, wait: Any) -> None:
        self.objective, self.wait = objective, wait

    def __call__(self, model: nn.Module, batch: Any) -> Loss:
        loss: Loss = self.objective(model, batch)
        self.wait(loss.total)
        return loss


def wait_unseen(_: Tensor) -> None:
    """What `no_waiting` does not notice, and a record does not allow."""
    torch.cuda.current_stream().synchronize()


@pytest.mark.parametrize("wait", [Tensor.item, wait_unseen], ids=["waits", "record fails"])
def test_what_cannot_be_recorded_is_trained_on_plainly(wait: Any) -> None:
    told = []
    for recorded in (False, True):
        model, objective, batches = case("gpt2", 0.2)
        said: list[str] = []
        stepper = stepper_of(model.cuda().train(), Waiting(objective, wait), recorded=recorded, said=said)
        ahead = Prefetch(batches, torch.device("cuda"))
        torch.manual_seed(1)
        totals = torch.stack([stepper.update(ahead).total for _ in range(STEPS)]).cpu()
        told.append((totals, torch.cuda.get_rng_state()))
        assert len(said) == recorded
    torch.testing.assert_close(told[0][0], told[1][0], rtol=2e-3, atol=2e-3)
    assert torch.equal(told[0][1], told[1][1])
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
