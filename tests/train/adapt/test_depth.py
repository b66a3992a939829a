"""Frozen parts stay as they are, and rates fall with depth exactly as said."""

import pytest
import torch

from qkv.errors import QkvError
from qkv.models.catalogue import Model
from qkv.train.adapt import LayerwiseRates, LoRA, add_lora, count_trainable, freeze
from qkv.train.optimizers import adamw, decay_groups
from tests.train.adapt.small_models import answer, make
from tests.train.tiny import TinyModel


def frozen_names(model: Model) -> set[str]:
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


def test_the_first_blocks_and_the_embeddings_are_frozen_and_nothing_else() -> None:
    model = make("bert", "classification", layers=3)
    freeze(model, embeddings=True, layers=2)
    names = [name for name, _ in model.named_parameters()]
    assert frozen_names(model) == {
        name for name in names if name.startswith(("embed.", "stack.blocks.0.", "stack.blocks.1."))
    }
    expected = sum(parameter.numel() for name, parameter in model.named_parameters() if name not in frozen_names(model))
    assert count_trainable(model) == expected


def test_what_is_frozen_gets_no_gradient_no_state_and_does_not_move() -> None:
    model = make("gpt2", "classification")
    freeze(model, layers=1)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = adamw(model.train(), learning_rate=0.1)
    answer(model).square().sum().backward()
    optimizer.step()
    frozen = frozen_names(model)
    assert frozen == {name for name in before if name.startswith("stack.blocks.0.")}
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == (name in frozen), name
        assert (parameter in optimizer.state) == (name not in frozen), name
        assert torch.equal(parameter, before[name]) == (name in frozen), name


def test_of_an_encoder_and_a_decoder_each_is_counted_for_itself() -> None:
    model = make("t5")
    freeze(model, embeddings=True, layers=2, decoder_layers=1)
    expected = ("source.", "target.", "encoder.blocks.", "encoder.bias", "decoder.blocks.0.", "decoder.bias")
    assert frozen_names(model) == {name for name, _ in model.named_parameters() if name.startswith(expected)}
    both = make("transformer")
    freeze(both, layers=1)
    expected = ("encoder.blocks.0.", "decoder.blocks.0.")
    assert frozen_names(both) == {name for name, _ in both.named_parameters() if name.startswith(expected)}


def test_what_cannot_be_frozen_is_said() -> None:
    with pytest.raises(QkvError, match="the stack has 2"):
        freeze(make("bert"), layers=3)
    with pytest.raises(QkvError, match="the stack has 1"):  # one layer that runs again and again
        freeze(make("albert", group_layers=1), layers=2)
    with pytest.raises(QkvError, match="Nothing is to be frozen"):
        freeze(make("bert"))
    with pytest.raises(QkvError, match="no decoder"):
        freeze(make("bert"), layers=1, decoder_layers=1)
    with pytest.raises(QkvError, match="nothing in it lies deeper"):
        freeze(make("rnn"), embeddings=True)


def rates_by_name(model: Model, decay: float) -> dict[str, float]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = adamw(model, learning_rate=1.0, rates=LayerwiseRates(decay)).param_groups
    return {names[parameter]: group["lr"] for group in groups for parameter in group["params"]}


def test_each_block_gets_a_share_of_the_rate_of_the_one_above() -> None:
    model = make("gpt2", "classification", layers=4)
    rates = rates_by_name(model, 0.5)
    assert rates.keys() == {name for name, _ in model.named_parameters()}
    for name, rate in rates.items():
        if name.startswith("stack.blocks."):
            assert rate == 0.5 ** (4 - int(name.split(".")[2])), name
        else:
            assert rate == (0.5**5 if name.startswith("embed.") else 1.0), name


def test_both_sides_of_a_translator_are_counted_from_their_tops() -> None:
    rates = rates_by_name(make("t5", encoder_layers=3, decoder_layers=2), 0.5)
    assert rates["source.tokens.weight"] == rates["encoder.bias.weight"] == 0.5**4
    assert rates["encoder.blocks.0.attention.norm.weight"] == 0.5**3
    assert rates["decoder.bias.weight"] == 0.5**3
    assert rates["decoder.blocks.1.cross.norm.weight"] == 0.5
    assert rates["decoder.norm.weight"] == 1.0


def test_rates_leave_the_rule_of_decay_as_it_is_and_the_highest_comes_first() -> None:
    model = make("bert", "classification")
    groups = adamw(model, learning_rate=0.2, weight_decay=0.3, rates=LayerwiseRates(0.5)).param_groups
    decaying = {parameter for group in groups if group["weight_decay"] == 0.3 for parameter in group["params"]}
    (expected, _) = decay_groups(model, 0.3)
    assert decaying == set(expected["params"])
    assert len(groups) == 7  # head, two blocks, embeddings: decaying or not, and the embeddings only not
    assert [group["lr"] for group in groups] == pytest.approx([0.2, 0.2, 0.1, 0.1, 0.05, 0.05, 0.025])


def test_updates_of_low_rank_have_the_rate_of_their_block() -> None:
    model = make("gpt2", "language")
    add_lora(model, LoRA(rank=2))
    rates = rates_by_name(model, 0.5)
    assert rates["stack.blocks.0.attention.mixer.project.lora.query.a"] == 0.25
    assert rates["stack.blocks.1.attention.mixer.project.lora.value.b"] == 0.5
    assert len(rates) == 8


def test_a_decay_that_is_none_and_a_model_without_depth_are_refused() -> None:
    with pytest.raises(QkvError, match="above 0 and at most 1"):
        LayerwiseRates(0.0)
    with pytest.raises(QkvError, match="nothing in it lies deeper"):
        adamw(TinyModel(), rates=LayerwiseRates(0.9))
