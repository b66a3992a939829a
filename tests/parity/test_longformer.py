"""Longformer against the reference library's, with noise on every parameter: global tokens at the start, elsewhere, and
none; windows that are crossed; gradients; files both ways.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import LongformerConfig

from qkv.errors import QkvError
from qkv.models.catalogue import FAMILIES, count_parameters
from qkv.models.head_choice import HeadChoice
from qkv.parts.attention.visibility import Tokens
from qkv.parts.context import Ledger
from qkv.parts.position import positions_in_documents
from qkv.weights.load import load_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published
from qkv.weights.rules import Drop, to_theirs
from qkv.weights.save import tensors_of
from tests.parity.published import (
    Case,
    Pair,
    answers,
    check_both_ways,
    check_outputs,
    close,
    random_ids,
    reference_pair,
)
from tests.weights.folders import edit_config

CONFIG: dict[str, Any] = {
    "vocab_size": 41, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40,
    "max_position_embeddings": 120, "attention_window": 8, "pad_token_id": 5, "type_vocab_size": 1,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "layer_norm_eps": 1e-5,
}  # fmt: skip


def case(architecture: str, **changes: Any) -> Case:
    return Case(architecture, LongformerConfig(**{**CONFIG, **changes}))


CASES = {
    "masked": case("LongformerForMaskedLM"),
    "untied, two segments": case("LongformerForMaskedLM", tie_word_embeddings=False, type_vocab_size=2),
    "pooled, a narrow window, relu": case("LongformerModel", attention_window=[4, 4], hidden_act="relu"),
    "classification": case("LongformerForSequenceClassification", num_labels=3, pad_token_id=1),
    "tokens, padding is 0": case("LongformerForTokenClassification", num_labels=4, pad_token_id=0, hidden_size=30),
}
PLACES = {
    "none": [[], [], []],
    "the first": [[0], [0], [0]],
    "the first three": [[0, 1, 2]] * 3,
    "here and there": [[], [4], [0, 3, 8]],
}


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return reference_pair(CASES[request.param], tmp_path_factory.mktemp("reference"))


def marked(places: list[list[int]], length: int) -> Tensor:
    marks = torch.zeros(len(places), length, dtype=torch.bool)
    for row, slots in enumerate(places):
        marks[row, [slot for slot in slots if slot < length]] = True
    return marks


def test_outputs_agree_at_all_lengths_and_paddings(pair: Pair) -> None:
    """With the tokens that the reference makes global by itself: the first where a text is classified."""
    check_outputs(pair, [1, 2, 9, 64, 100])


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 2, 9, 64, 100])
@pytest.mark.parametrize("places", PLACES)
def test_global_tokens_agree(pair: Pair, places: str, length: int) -> None:
    ids, marks = random_ids(pair, 3, length), marked(PLACES[places], length)
    ours = answers(pair.ours(ids, tokens=Tokens(length, marks=marks)))
    theirs = answers(pair.reference(ids, global_attention_mask=marks.long()))
    for one, other in zip(ours, theirs, strict=True):
        close(one, other)


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("places", PLACES)
def test_global_tokens_agree_in_padded_rows(pair: Pair, places: str, side: str) -> None:
    ids, real = random_ids(pair, 3, 21), torch.arange(21) < torch.tensor([[21], [14], [9]])
    real = real.flip(1) if side == "left" else real
    pad = pair.case.config.pad_token_id
    ids = ids.where(real, pad)
    marks = marked(PLACES[places], 21)
    marks = marks.flip(1) if side == "left" else marks
    tokens = Tokens(21, documents=real.long(), marks=marks)
    ours = answers(pair.ours(ids, tokens=tokens, positions=positions_in_documents(real.long())))
    theirs = answers(pair.reference(ids, attention_mask=real.long(), global_attention_mask=marks.long()))
    for one, other in zip(ours, theirs, strict=True):
        if one.ndim == 3:
            close(one[real], other[real])
        elif side == "right":  # the reference takes the first slot for the first token
            close(one, other)


@pytest.mark.parametrize("places", ["none", "here and there"])
def test_gradients_agree(pair: Pair, places: str) -> None:
    ids, marks = random_ids(pair, 3, 21), marked(PLACES[places], 21)
    for model in (pair.ours, pair.reference):
        model.zero_grad()
    ours = answers(pair.ours(ids, tokens=Tokens(21, marks=marks)))
    theirs = answers(pair.reference(ids, global_attention_mask=marks.long()))
    for one, other in zip(ours, theirs, strict=True):
        pull = torch.randn_like(other)
        (one * pull).sum().backward(retain_graph=True)
        (other * pull).sum().backward(retain_graph=True)
    gradients = {parameter: parameter.grad for parameter in pair.ours.parameters()}
    values = {parameter: parameter.detach().clone() for parameter in gradients}
    with torch.no_grad():
        for parameter, gradient in gradients.items():  # so that names are told by the map itself
            parameter.copy_(torch.zeros_like(parameter) if gradient is None else gradient)
        rules = PUBLISHED["longformer"].rules(pair.ours.sizes, pair.ours.head_choice)
        named = {name: tensor.clone() for name, tensor in to_theirs(rules, tensors_of(pair.ours)).items()}
        for parameter, value in values.items():
            parameter.copy_(value)
    compared = {rule.theirs for rule in rules if isinstance(rule, Drop)}  # what the reference never learns
    for name, parameter in pair.reference.named_parameters():
        known = name if name in named else f"longformer.{name}"
        if known not in compared:
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            if name.endswith("position_embeddings.weight"):  # the line of the padding token never learns there
                expected, named[known] = (each[pair.ours.sizes.first_position :] for each in (expected, named[known]))
            torch.testing.assert_close(named[known], expected, atol=1e-4, rtol=1e-3, msg=name)
            compared.add(known)
    assert named.keys() <= compared
    for model in (pair.ours, pair.reference):
        model.zero_grad()


def test_what_is_exported_the_reference_opens(pair: Pair, tmp_path: Path) -> None:
    check_both_ways(pair, tmp_path)
    again = load_model(tmp_path)
    assert (again.sizes, again.head_choice) == (pair.ours.sizes, pair.ours.head_choice)


@torch.no_grad()
def test_recorded_weights_are_those_of_both_kinds(pair: Pair) -> None:
    ids, marks = random_ids(pair, 3, 20), marked(PLACES["here and there"], 20)
    ledger = Ledger(pair.ours, {"weights"})
    with_ledger = answers(pair.ours(ids, tokens=Tokens(20, marks=marks), ledger=ledger))
    for one, other in zip(with_ledger, answers(pair.ours(ids, tokens=Tokens(20, marks=marks))), strict=True):
        close(one, other)
    assert len(ledger.entries) == 2
    half = pair.ours.sizes.window
    far = (torch.arange(20)[:, None] - torch.arange(20)).abs() > half
    for (weights,) in ledger.entries.values():  # [b h s s]
        close(weights.sum(-1), torch.ones(3, 3, 20))
        seen = ~far | marks[:, :, None] | marks[:, None]
        assert torch.equal(weights > 0, seen[:, None].expand_as(weights))


@pytest.mark.parametrize("size", FAMILIES["longformer"].published)
@pytest.mark.parametrize("kind", ["masked", "pooled", "classification", "tokens"])
def test_as_many_parameters_as_the_reference(size: str, kind: str) -> None:
    sizes, published = FAMILIES["longformer"].published[size], PUBLISHED["longformer"]
    labels = ("no", "yes") if kind in ("classification", "tokens") else ()
    config = transformers.AutoConfig.for_model(**published.config.write(sizes))
    with torch.device("meta"):
        reference = getattr(transformers, published.architectures[kind])(config)
    expected = sum(parameter.numel() for parameter in reference.parameters())
    assert count_parameters("longformer", sizes, HeadChoice(kind, labels)) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_window": [8, 4]}, "same in all layers"),
        ({"attention_window": 7}, "one even number"),
        ({"pad_token_id": None}, "whole number more than one above"),
        ({"max_position_embeddings": 6}, "whole number more than one above"),
        ({"architectures": ["LongformerForQuestionAnswering"]}, "of this family qkv knows LongformerForMaskedLM"),
    ],
)
def test_what_would_be_another_model_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = reference_pair(CASES["masked"], tmp_path / "theirs").ours
    save_published(model, tmp_path / "ours", PUBLISHED)
    edit_config(tmp_path / "ours", **changes)
    with pytest.raises(QkvError, match=message):
        load_model(tmp_path / "ours")


def test_a_padding_token_that_moves_the_positions_is_not_written(tmp_path: Path) -> None:
    model = reference_pair(CASES["masked"], tmp_path / "theirs").ours
    with pytest.raises(QkvError, match="by its sizes pad_token_id is 5, by its tokenizer 1"):
        save_published(model, tmp_path / "ours", PUBLISHED, {"pad_token_id": 1})
