"""Blocks that are computed once more give the same gradients and keep less."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.models.attention_choice import AttentionChoice
from qkv.models.catalogue import build
from qkv.models.head_choice import HeadChoice
from qkv.models.text_model import TextModel
from qkv.parts.block import Block
from qkv.parts.context import Context, Ledger
from qkv.parts.experts import FIGURES
from qkv.train.objectives.expert_losses import WithExpertLosses
from qkv.train.objectives.language import LanguageLoss
from qkv.train.parallel.recompute import recompute_blocks
from tests.models.small import perturb, small_model
from tests.models.small_text import small_sizes
from tests.train.parallel.shared_rows import Case, language_batch

Work = Callable[[], Tensor]


def text(family: str, attention: str | None = None, **sizes: Any) -> TextModel:
    """In training, with dropout wherever the family has some."""
    torch.manual_seed(2)
    small = replace(small_sizes(family), positions=64, **sizes)
    rate = 0.2 if attention is None else 0.0  # other attentions have none
    small = replace(small, **{name: rate for name in vars(small) if name.endswith("dropout")})
    model = build(family, small, HeadChoice("language"), attention=AttentionChoice.of(attention))
    perturb(model)
    return model.train()


def language(family: str, documents: int = 1, objective: Any = None, **given: Any) -> tuple[nn.Module, Work]:
    model, batch = text(family, **given), language_batch(Case(family, 12, documents), seed=5)
    return model, lambda: (objective or LanguageLoss())(model, batch).total


def translation(case: str) -> tuple[nn.Module, Work]:
    model = small_model(case).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.2
    source, target = torch.randint(3, 19, (3, 7)), torch.randint(3, 19, (3, 5))
    return model, lambda: model(source, torch.tensor([7, 5, 2]), target).logsumexp(-1).sum()


MODELS: dict[str, Callable[[], tuple[nn.Module, Work]]] = {
    "gpt2": lambda: language("gpt2"),
    "gpt2 in packed rows": lambda: language("gpt2", documents=3),
    "llama": lambda: language("llama"),
    "gpt2 with hashed attention, which draws": lambda: language("gpt2", attention="lsh:2:4"),
    "experts": lambda: language("gpt2", objective=WithExpertLosses(LanguageLoss(), balance=0.5), experts=4),
    "experts of mixtral": lambda: language("mixtral", documents=2, objective=WithExpertLosses(LanguageLoss(), 0.5)),
    "t5, whose bias all layers share": lambda: translation("t5"),
    "switch, experts and a bias": lambda: translation("switch"),
    "marian": lambda: translation("marian"),
}


def gradients(model: nn.Module, work: Work) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """The loss, all gradients, and the next random numbers."""
    model.zero_grad()
    torch.manual_seed(3)
    loss = work()
    loss.backward()
    found = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    return loss.detach(), found, torch.rand(3)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_the_same_to_the_last_bit(name: str) -> None:
    model, work = MODELS[name]()
    loss, expected, drawn = gradients(model, work)
    with recompute_blocks(model):
        again, found, drawn_again = gradients(model, work)
    assert torch.equal(loss, again)
    assert found.keys() == expected.keys()
    for parameter, gradient in expected.items():
        assert torch.equal(found[parameter], gradient), parameter
    assert torch.equal(drawn, drawn_again), "no random number is drawn twice"


def kept(work: Work) -> int:
    """Numbers that are kept for the way back."""
    found: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = work()
    assert loss.requires_grad
    return sum(found.values())


def test_a_block_keeps_its_input_alone() -> None:
    """With a block more, one stream more is kept; in the ordinary way many times that."""
    ids = torch.randint(3, 11, (2, 16))
    plain, anew = [], []
    for layers in (2, 3):
        model = text("gpt2", layers=layers)
        work = partial(_sum, model, ids)
        plain.append(kept(work))
        with recompute_blocks(model):
            anew.append(kept(work))
    stream = ids.numel() * small_sizes("gpt2").width
    assert anew[1] - anew[0] == stream
    assert plain[1] - plain[0] > 15 * stream


def _sum(model: TextModel, ids: Tensor) -> Tensor:
    total: Tensor = model(ids).sum()
    return total


def test_the_ledger_is_written_once_and_may_be_asked_twice() -> None:
    model = text("gpt2", experts=4)
    ids = torch.randint(3, 11, (2, 9))
    ledger = Ledger(model, FIGURES)
    with recompute_blocks(model):
        loss = model(ids, ledger=ledger).sum()
        written = len(ledger.written)
        loss.backward(retain_graph=True)
        first = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
        model.zero_grad()
        loss.backward()
    assert written == len(ledger.written) == len(FIGURES)  # of the one layer with experts
    for name, gradient in first.items():
        assert torch.equal(dict(model.named_parameters())[name].grad, gradient)  # type: ignore[arg-type]


def test_reading_without_gradients_and_decoding_stay_as_they_are() -> None:
    model = text("llama").eval()
    ids = torch.randint(3, 11, (2, 9))
    expected = model(ids)
    with recompute_blocks(model):
        with torch.no_grad():
            assert torch.equal(model(ids), expected)
        cache = model.new_cache(9)
        steps = [model(ids[:, step : step + 1], cache=cache) for step in range(9)]
    assert cache.length == 9
    torch.testing.assert_close(torch.cat(steps, 1), expected)


def test_blocks_are_given_back_as_they_were() -> None:
    model = text("gpt2")
    block = next(module for module in model.modules() if isinstance(module, Block))

    def compiled(x: Tensor, ctx: Context) -> Tensor:
        return Block.forward(block, x, ctx)

    block.forward = compiled  # type: ignore[method-assign]
    with recompute_blocks(model):
        assert block.forward is not compiled
    assert block.forward is compiled
    assert sum("forward" in vars(module) for module in model.modules()) == 1


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: build("reformer", small_sizes("reformer"), HeadChoice("language")), "keep nothing as it is"),
        (lambda: small_model("rnn"), "no blocks"),
    ],
)
def test_models_that_cannot_are_refused(model: Callable[[], nn.Module], said: str) -> None:
    with pytest.raises(QkvError, match=said), recompute_blocks(model()):
        pass
