"""The loss equals torch's own where torch has one, never sees padding, and keeps its softmax in float32."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qkv.train.objectives.sequence_to_sequence as module
from qkv.errors import QkvError
from qkv.train.objectives import SequenceToSequenceLoss
from qkv.train.objectives.sequence_to_sequence import smoothed_cross_entropy
from tests.train.tiny import TinyModel, make_batch


def random_case(rows: int = 4, width: int = 5, vocabulary: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    logits = torch.randn(rows, width, vocabulary, dtype=torch.float64) * 3
    wanted = torch.randint(0, vocabulary, (rows, width))
    real = torch.arange(width) < torch.tensor([5, 1, 3, 4])[:, None]
    return logits, wanted, real


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("widened_at_once", [1, 7 * 3, 2**24])
def test_value_and_gradient_equal_torch(
    smoothing: float, widened_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WIDENED_AT_ONCE", widened_at_once)
    logits, wanted, real = random_case()
    logits.requires_grad_()
    total, likelihood = smoothed_cross_entropy(logits, wanted, real, smoothing)
    (gradient,) = torch.autograd.grad(total * 0.37, logits)

    expected = F.cross_entropy(logits[real], wanted[real], label_smoothing=smoothing, reduction="sum")
    (expected_gradient,) = torch.autograd.grad(expected * 0.37, logits)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(gradient, expected_gradient)
    torch.testing.assert_close(likelihood, F.cross_entropy(logits[real], wanted[real], reduction="sum"))
    assert not likelihood.requires_grad


def test_smoothing_by_hand() -> None:
    # Two tokens with probabilities 3/4 and 1/4: the target (0.9 + 0.05, 0.05) costs .95 ln 4/3 + .05 ln 4.
    logits = torch.tensor([[[3.0, 1.0]]]).log()
    total, _ = smoothed_cross_entropy(logits, torch.tensor([[0]]), torch.tensor([[True]]), 0.1)
    assert total.item() == pytest.approx(0.95 * 0.287682 + 0.05 * 1.386294, abs=1e-5)


def test_padding_may_hold_anything() -> None:
    logits, wanted, real = random_case()
    spoiled = torch.where(real[..., None], logits, torch.nan).requires_grad_()
    total, likelihood = smoothed_cross_entropy(spoiled, wanted, real, 0.1)
    total.backward()
    clean, clean_likelihood = smoothed_cross_entropy(logits, wanted, real, 0.1)
    assert total.item() == clean.item()
    assert likelihood.item() == clean_likelihood.item()
    assert spoiled.grad is not None
    assert spoiled.grad[~real].abs().max() == 0
    assert spoiled.grad[real].isfinite().all()


def test_bfloat16_logits_are_summed_in_float32() -> None:
    logits = (torch.randn(2, 300, 50) * 4).bfloat16()
    wanted = torch.randint(0, 50, (2, 300))
    total, _ = smoothed_cross_entropy(logits, wanted, torch.ones(2, 300, dtype=torch.bool), 0.0)
    exact = F.cross_entropy(logits.double().flatten(0, 1), wanted.flatten(), reduction="sum")
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(exact.item(), rel=1e-6)


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


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_smoothing_out_of_range_is_refused(smoothing: float) -> None:
    with pytest.raises(QkvError, match="at least 0 and less than 1"):
        SequenceToSequenceLoss(smoothing=smoothing)
