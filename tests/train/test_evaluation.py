"""Validation figures are means over tokens, whatever the batches."""

import math

import pytest
import torch

from qkv.errors import QkvError
from qkv.train.evaluation import ValidationLoss, finite_or_none
from qkv.train.objectives import SequenceToSequenceLoss
from tests.train.tiny import TinyModel, make_batch


@torch.no_grad()
def test_means_are_over_tokens_and_perplexity_is_of_the_plain_likelihood() -> None:
    model, objective = TinyModel().eval(), SequenceToSequenceLoss(smoothing=0.2)
    batches = [make_batch(0), make_batch(1, rows=7)]
    figures = ValidationLoss(objective, batches)(model)
    plain = SequenceToSequenceLoss(smoothing=0.0)
    tokens = sum(batch.target_tokens for batch in batches)
    nll = sum(plain(model, batch).total.item() for batch in batches) / tokens
    assert figures["nll"] == pytest.approx(nll)
    assert figures["perplexity"] == pytest.approx(math.exp(nll))
    assert figures["loss"] == pytest.approx(sum(objective(model, batch).total.item() for batch in batches) / tokens)


def test_nothing_to_validate_on_is_an_error() -> None:
    with pytest.raises(QkvError, match="no batch to validate on"):
        ValidationLoss(SequenceToSequenceLoss(), [])(TinyModel())


def test_json_gets_no_nan() -> None:
    assert finite_or_none({"a": 1.5, "b": math.nan, "c": math.inf}) == {"a": 1.5, "b": None, "c": None}
