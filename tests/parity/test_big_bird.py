"""BigBird against the reference library's, with noise on every parameter: rows too short for blocks and long ones,
gradients, files both ways.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import BigBirdConfig

from qkv.errors import QkvError
from qkv.models.catalogue import FAMILIES, count_parameters
from qkv.models.head_choice import HeadChoice
from qkv.parts.attention.visibility import Tokens
from qkv.weights.compare import _made_sparse
from qkv.weights.load import load_model
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published
from tests.parity.published import (
    Case,
    Pair,
    answers,
    check_both_ways,
    check_gradients,
    check_outputs,
    close,
    random_ids,
    reference_pair,
)
from tests.weights.folders import edit_config

CONFIG: dict[str, Any] = {
    "vocab_size": 41, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40,
    "max_position_embeddings": 128, "block_size": 4, "num_random_blocks": 2, "pad_token_id": 5,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def case(architecture: str, **changes: Any) -> Case:
    return Case(architecture, BigBirdConfig(**{**CONFIG, **changes}))


CASES = {
    "pretraining": case("BigBirdForPreTraining"),
    "masked, untied, scaled": case("BigBirdForMaskedLM", tie_word_embeddings=False, rescale_embeddings=True),
    "pooled, without biases": case("BigBirdModel", use_bias=False, block_size=2, num_random_blocks=3),
    "all see all": case("BigBirdForMaskedLM", attention_type="original_full"),
    "classification": case("BigBirdForSequenceClassification", num_labels=3, hidden_act="relu"),
    "tokens": case("BigBirdForTokenClassification", num_labels=4, num_random_blocks=1),
}


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return reference_pair(CASES[request.param], tmp_path_factory.mktemp("reference"))


def theirs(pair: Pair, ids: Tensor, **beside: Any) -> tuple[Tensor, ...]:
    _made_sparse(pair.reference)
    return answers(pair.reference(ids, **beside))


def test_outputs_agree_at_all_lengths_and_paddings(pair: Pair) -> None:
    check_outputs(pair, [1, 2, 9, 64, 100, 128])


@torch.no_grad()
@pytest.mark.parametrize("length", [36, 37, 40, 61, 128])
def test_long_rows_agree(pair: Pair, length: int) -> None:
    """At the last length that is read whole, and beyond; rows padded on the right, of which one fills a block only."""
    ids, real = random_ids(pair, 3, length), torch.arange(length) < torch.tensor([[length], [length - 9], [4]])
    found = answers(pair.ours(ids, tokens=Tokens(length, documents=real.long())))
    for one, other in zip(found, theirs(pair, ids, attention_mask=real.long()), strict=True):
        close(one[real] if one.ndim == 3 else one, other[real] if one.ndim == 3 else other)


def test_gradients_agree(pair: Pair) -> None:
    check_gradients(pair)


def test_gradients_of_long_rows_agree(pair: Pair) -> None:
    """Of the embeddings, which every other part has a share in."""
    ids, found = random_ids(pair, 2, 70), []
    outputs = answers(pair.ours(ids)), theirs(pair, ids)
    pulls = [torch.randn_like(each) for each in outputs[0]]
    tables = pair.ours.embed.tokens.weight, pair.reference.get_input_embeddings().weight
    for given, table in zip(outputs, tables, strict=True):
        total = torch.stack([(each * pull).sum() for each, pull in zip(given, pulls, strict=True)]).sum()
        found.append(torch.autograd.grad(total, table)[0])
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-3)


def test_what_is_exported_the_reference_opens(pair: Pair, tmp_path: Path) -> None:
    _made_sparse(pair.reference)
    check_both_ways(pair, tmp_path)
    again = load_model(tmp_path)
    assert (again.sizes, again.head_choice) == (pair.ours.sizes, pair.ours.head_choice)


@pytest.mark.parametrize("size", FAMILIES["big-bird"].published)
@pytest.mark.parametrize("kind", ["pretraining", "pooled"])
def test_as_many_parameters_as_the_reference(size: str, kind: str) -> None:
    sizes, published = FAMILIES["big-bird"].published[size], PUBLISHED["big_bird"]
    config = transformers.AutoConfig.for_model(**published.config.write(sizes))
    with torch.device("meta"):
        reference = getattr(transformers, published.architectures[kind])(config)
    expected = sum(parameter.numel() for parameter in reference.parameters())
    assert count_parameters("big-bird", sizes, HeadChoice(kind)) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_type": "sparse"}, "block_sparse or original_full"),
        ({"is_decoder": True}, "is_decoder False"),
        ({"architectures": ["BigBirdForQuestionAnswering"]}, "of this family qkv knows BigBirdForPreTraining"),
    ],
)
def test_what_would_be_another_model_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = reference_pair(CASES["pretraining"], tmp_path / "theirs").ours
    save_published(model, tmp_path / "ours", PUBLISHED)
    edit_config(tmp_path / "ours", **changes)
    with pytest.raises(QkvError, match=message):
        load_model(tmp_path / "ours")
