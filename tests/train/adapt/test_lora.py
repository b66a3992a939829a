"""Low-rank updates: nothing changes at first, only they learn, and folded in they give the same answers."""

import copy
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.models.catalogue import Model, build
from qkv.models.head_choice import HeadChoice
from qkv.train.adapt import LoRA, add_lora, count_trainable, merge, merged, saving_merged
from qkv.train.adapt.lora import TARGETS, updates_of
from qkv.train.optimizers import adamw
from qkv.weights.load import load_model, with_head
from qkv.weights.save import save_model, tensors_of
from tests.train.adapt.small_models import MAKES, answer, make
from tests.train.tiny import TinyModel, train_tiny

EVERYTHING = LoRA(rank=3, alpha=6, targets=TARGETS)


@torch.no_grad()
def learn_something(model: nn.Module) -> None:
    for lora in updates_of(model).values():
        lora.b.normal_(std=0.3)


@pytest.mark.parametrize("family", MAKES)
def test_answers_are_unchanged_at_the_start_and_change_when_something_is_learned(family: str) -> None:
    model = make(family)
    expected = answer(model)
    add_lora(model, EVERYTHING)
    torch.testing.assert_close(answer(model), expected, rtol=1e-5, atol=1e-5)  # rows lie elsewhere in memory
    learn_something(model)
    assert not torch.allclose(answer(model), expected, atol=1e-2)


@pytest.mark.parametrize("family", MAKES)
def test_folded_in_it_answers_the_same_and_is_an_ordinary_model(family: str) -> None:
    model = make(family)
    plain = {name: tensor.shape for name, tensor in tensors_of(model).items()}
    add_lora(model, EVERYTHING)
    learn_something(model)
    expected = answer(model)
    merge(model)
    torch.testing.assert_close(answer(model), expected, rtol=1e-4, atol=1e-4)
    assert {name: tensor.shape for name, tensor in tensors_of(model).items()} == plain
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not updates_of(model)


def test_an_update_is_alpha_over_rank_times_b_a() -> None:
    model = make("llama")
    project = model.stack.blocks[1].attention.mixer.project
    x = torch.randn(5, project.width)
    query, key, value = project(x)
    add_lora(model, LoRA(rank=4, alpha=10, targets=("query",)))
    learn_something(model)
    adapted = model.stack.blocks[1].attention.mixer.project
    lora = adapted.lora["query"]
    new_query, new_key, new_value = adapted(x)
    torch.testing.assert_close(new_query, query + 10 / 4 * x @ lora.a.T @ lora.b.T)
    assert torch.equal(new_key, key)
    assert torch.equal(new_value, value)
    assert torch.equal(adapted.together(x), torch.cat((new_query, new_key, new_value), -1))
    weight = project.weight.double().clone()
    weight[: len(lora.b)] += 2.5 * lora.b.double() @ lora.a.double()
    merge(model)
    assert torch.equal(project.weight, weight.float())
    assert model.stack.blocks[1].attention.mixer.project is project


@pytest.mark.parametrize(
    ("family", "targets", "names"),
    [
        ("bert", ("query", "value"), ("attention.mixer.project.query", "attention.mixer.project.value")),
        ("bert", ("out", "inner"), ("attention.mixer.out", "feed_forward.mixer.inner")),
        ("llama", ("value",), ("attention.mixer.project.value",)),
        ("llama", ("inner",), ("feed_forward.mixer.inner.gate", "feed_forward.mixer.inner.value")),
    ],
)
def test_the_named_maps_and_no_others_are_adapted(
    family: str, targets: tuple[str, ...], names: tuple[str, ...]
) -> None:
    model = make(family)
    add_lora(model, LoRA(rank=2, targets=targets))
    assert updates_of(model).keys() == {f"stack.blocks.{block}.{name}" for block in (0, 1) for name in names}


def test_cross_attention_is_adapted_too() -> None:
    model = make("t5")
    add_lora(model)
    assert "decoder.blocks.0.cross.mixer.query" in updates_of(model)
    assert "decoder.blocks.1.cross.mixer.project.value" in updates_of(model)


def test_a_translator_decodes_step_by_step_as_it_does_at_once() -> None:
    model = make("t5")
    add_lora(model, EVERYTHING)
    learn_something(model)
    source, target = torch.tensor([[3, 4, 5]]), torch.tensor([[1, 6, 7, 8]])
    memory, cache = model.encode(source), model.new_cache(4)
    steps = [model.decode(target[:, place : place + 1], memory, cache) for place in range(4)]
    torch.testing.assert_close(torch.cat(steps, 1), model.decode(target, memory), rtol=1e-4, atol=1e-4)


def test_only_updates_get_gradients_and_their_number_is_known() -> None:
    model = make("gpt2", "language", width=20, hidden=24, heads=2, layers=2)
    add_lora(model, LoRA(rank=3))
    assert count_trainable(model) == 2 * 2 * (3 * 20 + 20 * 3)
    optimizer = adamw(model.train(), learning_rate=0.1)
    for _ in range(2):  # at first B is zero, and so is the gradient of A
        answer(model).square().sum().backward()
        optimizer.step()
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    project = "stack.blocks.{}.attention.mixer.project.lora.{}.{}"
    assert trained == {project.format(*each) for each in product((0, 1), ("query", "value"), ("a", "b"))}
    assert all(lora.a.grad.abs().sum() > 0 and lora.b.grad.abs().sum() > 0 for lora in updates_of(model).values())
    assert len(optimizer.state) == len(trained)


def trained_outside(model: nn.Module) -> set[str]:
    return {name for name, each in model.named_parameters() if each.requires_grad and ".lora." not in name}


def test_a_head_for_a_task_is_trained_too_and_a_language_head_is_not() -> None:
    classifier, language = make("bert", "classification"), make("llama", "language", tied=False)
    add_lora(classifier)
    assert trained_outside(classifier) == {
        f"head.{part}" for part in ("pool.dense.weight", "pool.dense.bias", "out.weight", "out.bias")
    }
    add_lora(language)
    assert trained_outside(language) == set()
    frozen, unfrozen = make("bert", "classification"), make("llama", "language", tied=False)
    add_lora(frozen, LoRA(head=False))
    assert trained_outside(frozen) == set()
    add_lora(unfrozen, LoRA(head=True))
    assert trained_outside(unfrozen) == {"head.weight"}


def test_dropout_falls_on_what_an_update_reads_while_training() -> None:
    model = make("gpt2", dropout=0.0, attention_dropout=0.0, embedding_dropout=0.0)
    add_lora(model, LoRA(dropout=0.5))
    learn_something(model)
    assert torch.equal(answer(model), answer(model))
    model.train()
    assert not torch.equal(answer(model), answer(model))


def test_merged_for_a_while_and_then_exactly_as_before() -> None:
    model = make("llama")
    add_lora(model, EVERYTHING)
    learn_something(model)
    before, expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}, answer(model)
    parameters = list(model.parameters())
    with merged(model):
        assert tensors_of(model).keys() == tensors_of(make("llama")).keys()
        torch.testing.assert_close(answer(model), expected, rtol=1e-4, atol=1e-4)
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    assert torch.equal(answer(model), expected)


def test_a_copy_is_a_model_of_its_own() -> None:
    model = make("bert")
    add_lora(model)
    learn_something(model)
    expected = answer(model)
    twin = copy.deepcopy(model)
    merge(twin)
    assert torch.equal(answer(model), expected)
    torch.testing.assert_close(answer(twin), expected, rtol=1e-4, atol=1e-4)


def test_it_trains_in_mixed_precision() -> None:
    model = make("gpt2", "language").train()
    add_lora(model)
    learn_something(model)
    with torch.autocast("cpu", torch.bfloat16):
        answer(model).float().square().sum().backward()
    lora = next(iter(updates_of(model).values()))
    assert lora.a.dtype == lora.a.grad.dtype == torch.float32
    assert lora.a.grad.isfinite().all()


def compiled_answer(model: Model) -> Tensor:
    """With every block captured as one graph, as `compiled_blocks` does, and run as it stands there."""
    for block in model.stack.blocks:
        block.forward = torch.compile(block.forward, dynamic=True, fullgraph=True, backend="eager")
    try:
        return answer(model)
    finally:
        for block in model.stack.blocks:
            del block.forward


@pytest.mark.slow
def test_a_compiled_block_has_its_updates() -> None:
    """One that was compiled before must not be taken for one that has them."""
    model = make("gpt2", "language")
    plain = compiled_answer(model)
    add_lora(model)
    learn_something(model)
    found = compiled_answer(model)
    found.square().sum().backward()
    torch.testing.assert_close(found, answer(model), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found, plain, atol=1e-2)
    assert all(lora.a.grad.abs().sum() > 0 for lora in updates_of(model).values())
    merge(model)
    torch.testing.assert_close(compiled_answer(model), found, rtol=1e-4, atol=1e-4)


def wrapped(model: Model) -> Model:
    add_lora(model, LoRA(rank=2))
    return model


def small_translator() -> Model:
    """It reads the batches of the tiny runs."""
    return make("transformer", vocabulary=11, source_vocabulary=None)


def test_a_run_resumes_and_leaves_an_ordinary_model(tmp_path: Path) -> None:
    save = {"save_model": saving_merged(save_model)}
    _, whole, _ = train_tiny(tmp_path / "whole", model=wrapped(small_translator()), steps=6, save_every=3, run=save)
    train_tiny(tmp_path / "cut", model=wrapped(small_translator()), steps=3, save_every=3, run=save)
    # The weights of the base are in the checkpoint too: a resumed run need not find them again.
    torch.manual_seed(5)
    other = build("transformer", small_translator().sizes).eval()
    _, resumed, _ = train_tiny(
        tmp_path / "cut", model=wrapped(other), steps=6, save_every=3, run={**save, "resume": True}
    )
    assert torch.equal(answer(resumed), answer(whole))
    assert not torch.allclose(answer(whole), answer(small_translator()), atol=1e-3)
    for folder in ("whole", "cut"):
        loaded = load_model(tmp_path / folder)
        torch.testing.assert_close(answer(loaded), answer(whole), rtol=1e-4, atol=1e-4)
        assert not updates_of(loaded)


def test_weights_without_their_updates_are_not_taken_for_the_model(tmp_path: Path) -> None:
    model = make("bert")
    add_lora(model)
    with pytest.raises(QkvError, match="merge them first"):
        save_model(model, tmp_path)
    with pytest.raises(QkvError, match="merge them first"):
        with_head(model, HeadChoice("states"))


def test_bad_choices_are_said() -> None:
    with pytest.raises(QkvError, match="cannot adapt querry"):
        LoRA(targets=("querry",))
    with pytest.raises(QkvError, match="maps to adapt"):
        LoRA(targets=())
    with pytest.raises(QkvError, match="rank of 1 or more"):
        LoRA(rank=0)
    with pytest.raises(QkvError, match="no blocks with a map called query"):
        add_lora(TinyModel())
    model = make("bert")
    with pytest.raises(QkvError, match="no low-rank updates to merge"):
        merge(model)
    add_lora(model)
    with pytest.raises(QkvError, match="already"):
        add_lora(model)
