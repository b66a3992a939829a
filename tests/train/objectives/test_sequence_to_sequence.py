"""The loss is that of every target token given those before it, and never sees padding."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.train.objectives import SequenceToSequenceLoss
from qkv.train.objectives.cross_entropy import smoothed_cross_entropy
from qkv.train.objectives.sequence_to_sequence import predicted
from tests.models.small import CASES, small_model
from tests.train.tiny import TinyModel, make_batch


class Recorder(nn.Module):
    """Notes what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.arguments: tuple[Tensor, ...] = ()

    def forward(self, source: Tensor, source_lengths: Tensor, target: Tensor) -> Tensor:
        self.arguments = (source, source_lengths, target)
        return torch.zeros(*target.shape, 11)


def test_the_model_reads_all_but_the_last_token_and_lengths_decide_what_counts() -> None:
    batch, model = make_batch(0), Recorder()
    loss = SequenceToSequenceLoss(smoothing=0.1)(model, batch)
    assert torch.equal(model.arguments[2], batch.target[:, :-1])
    assert loss.count == int((batch.target_lengths - 1).sum())
    # Equal logits cost ln 11 for each real token, smoothed or not; a pad id inside the length counts like any other.
    assert loss.total.item() == pytest.approx(loss.count * 2.397895, rel=1e-5)
    inside = batch.target.clone()
    inside[0, 1] = 0
    again = SequenceToSequenceLoss()(model, make_batch(0).__class__(**{**vars(batch), "target": inside}))
    assert again.total.item() == loss.total.item()


def test_the_loss_does_not_depend_on_how_far_rows_are_padded() -> None:
    batch, model = make_batch(1), TinyModel().eval()
    wider = F.pad(batch.target, (0, 4))
    padded = make_batch(1).__class__(**{**vars(batch), "target": wider})
    objective = SequenceToSequenceLoss()
    torch.testing.assert_close(objective(model, padded).total, objective(model, batch).total)


def test_measure_reports_the_plain_likelihood_beside_the_smoothed_loss() -> None:
    batch, model = make_batch(2), TinyModel().eval()
    measured = SequenceToSequenceLoss(smoothing=0.3).measure(model, batch)
    plain = SequenceToSequenceLoss(smoothing=0.0)(model, batch)
    assert measured["nll"].total.item() == pytest.approx(plain.total.item())
    assert measured["loss"].total.item() != pytest.approx(plain.total.item(), rel=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_of_every_family_it_is_the_loss_of_its_logits(case: str) -> None:
    """Those whose head ends in a product with the vocabulary never make all logits."""
    batch, model = make_batch(3), small_model(case).eval()
    measured = SequenceToSequenceLoss(smoothing=0.3).measure(model, batch)
    wanted, real = predicted(batch.target, batch.target_lengths)
    logits = model(batch.source, batch.padding, batch.target[:, :-1])
    expected, likelihood = smoothed_cross_entropy(logits, wanted, real, 0.3)
    torch.testing.assert_close(measured["loss"].total, expected)
    torch.testing.assert_close(measured["nll"].total, likelihood)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found, exact = (
        torch.autograd.grad(loss, weights, allow_unused=True) for loss in (measured["loss"].total, expected)
    )
    for one, other in zip(found, exact, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_smoothing_out_of_range_is_refused(smoothing: float) -> None:
    with pytest.raises(QkvError, match="at least 0 and less than 1"):
        SequenceToSequenceLoss(smoothing=smoothing)
