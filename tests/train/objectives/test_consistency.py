"""R-Drop against its equation."""

import pytest
import torch
import torch.nn.functional as F

from qkv.errors import QkvError
from qkv.train.objectives.consistency import ConsistentLoss, divergence
from qkv.train.objectives.sequence_to_sequence import SequenceToSequenceLoss
from tests.train.tiny import TinyModel, make_batch


def test_divergence_is_both_kullback_leibler_divergences() -> None:
    first, second = torch.randn(2, 7, 11, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    p, q = first.log_softmax(-1), second.log_softmax(-1)
    both = F.kl_div(q, p, log_target=True, reduction="none") + F.kl_div(p, q, log_target=True, reduction="none")
    torch.testing.assert_close(divergence(first, second), both.sum(-1))
    assert divergence(first.double(), second.double()).dtype == torch.float64


def test_without_dropout_it_is_the_plain_loss() -> None:
    batch, model = make_batch(3), TinyModel().eval()
    plain, consistent = SequenceToSequenceLoss()(model, batch), ConsistentLoss()(model, batch)
    torch.testing.assert_close(consistent.total, plain.total)
    assert consistent.count == plain.count


def test_with_dropout_disagreement_costs_in_proportion_to_its_weight() -> None:
    batch, model = make_batch(3), TinyModel(dropout=0.5).train()

    def total(weight: float) -> torch.Tensor:
        torch.manual_seed(5)
        return ConsistentLoss(weight=weight)(model, batch).total

    torch.testing.assert_close(total(8.0) - total(0.0), 2 * (total(4.0) - total(0.0)))
    assert total(4.0) > total(0.0)


def test_padding_adds_nothing() -> None:
    batch, model = make_batch(1), TinyModel().eval()
    wider = make_batch(1).__class__(**{**vars(batch), "target": F.pad(batch.target, (0, 4))})
    torch.testing.assert_close(ConsistentLoss()(model, wider).total, ConsistentLoss()(model, batch).total)


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(QkvError, match="0 or more"):
        ConsistentLoss(weight=-1)
