import pytest
import torch

from qkv.generate.continuation import FromPrompts
from qkv.generate.prepare import PackedLinear, ReorderedLinear, can_pack, prepare
from qkv.train.adapt import LoRA, add_lora
from qkv.train.adapt.lora import TARGETS, updates_of
from tests.generate.language_models import PROMPTS, small_gpt
from tests.generate.models import sources
from tests.models.small import CASES, small_model

pytestmark = pytest.mark.skipif(
    not can_pack(torch.empty(16, 16)), reason="packing needs a compiler or a torch with oneDNN"
)


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_a_prepared_model_computes_the_same(case, monkeypatch):
    monkeypatch.setattr("qkv.generate.prepare.SMALL", 1)
    model = small_model(case)
    ready = prepare(model)
    assert any(isinstance(module, PackedLinear | ReorderedLinear) for module in ready.modules())
    for rows in (1, 3, 70):
        source, lengths = sources([9, *[4] * (rows - 1)], model.source_vocabulary)
        target = torch.randint(0, model.target_vocabulary, (rows, 5))
        torch.testing.assert_close(ready(source, lengths, target), model(source, lengths, target), atol=1e-5, rtol=1e-4)
        # and step by step
        memory, cache = ready.encode(source, lengths), ready.new_cache(5)
        steps = [ready.decode(target[:, step : step + 1], memory, cache) for step in range(5)]
        torch.testing.assert_close(torch.cat(steps, 1), model(source, lengths, target), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_without_a_compiler_a_prepared_model_computes_the_same(monkeypatch):
    monkeypatch.setattr("qkv.generate.prepare.SMALL", 1)
    monkeypatch.setattr("qkv.parts.cpu.library", lambda: None)
    model = small_gpt()
    ready = prepare(model)
    assert isinstance(ready.head, ReorderedLinear)
    ours, theirs = FromPrompts(ready, PROMPTS, most=4), FromPrompts(model, PROMPTS, most=4)
    torch.testing.assert_close(ours.begin(), theirs.begin(), atol=1e-5, rtol=1e-4)
    new = torch.full((len(PROMPTS), 1), 5)
    torch.testing.assert_close(ours.advance(new), theirs.advance(new), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_the_weights_are_shared_and_the_model_stays_as_it_was(monkeypatch):
    monkeypatch.setattr("qkv.generate.prepare.SMALL", 1)
    model = small_model("transformer").train()
    modules = dict(model.named_modules())
    ready = prepare(model)
    assert dict(model.named_modules()) == modules
    assert model.training
    assert not ready.training
    assert {id(parameter) for parameter in ready.parameters()} <= {id(parameter) for parameter in model.parameters()}
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_small_matrices_stay_as_they_are():
    assert not any(
        isinstance(module, PackedLinear | ReorderedLinear) for module in prepare(small_model("transformer")).modules()
    )


@torch.no_grad()
def test_a_prepared_language_model_writes_the_same(monkeypatch):
    monkeypatch.setattr("qkv.generate.prepare.SMALL", 1)
    model = small_gpt()
    ready = prepare(model)
    assert isinstance(ready.head, PackedLinear | ReorderedLinear)
    for prompts in (PROMPTS, PROMPTS[:1]):
        ours, theirs = FromPrompts(ready, prompts, most=4), FromPrompts(model, prompts, most=4)
        torch.testing.assert_close(ours.begin(), theirs.begin(), atol=1e-5, rtol=1e-4)
        new = torch.full((len(prompts), 2), 5)
        torch.testing.assert_close(ours.advance(new), theirs.advance(new), atol=1e-5, rtol=1e-4)


def test_updates_beside_a_matrix_are_not_lost(monkeypatch):
    monkeypatch.setattr("qkv.generate.prepare.SMALL", 1)
    model = small_gpt()
    add_lora(model, LoRA(rank=2, targets=TARGETS))
    with torch.no_grad():
        for lora in updates_of(model).values():
            lora.b.normal_(std=0.3)
    ids = torch.tensor([PROMPTS[2]])
    torch.testing.assert_close(prepare(model)(ids), model(ids), rtol=1e-4, atol=1e-4)
