"""The loss equals torch's own where torch has one, never sees padding, and keeps its softmax in float32."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qkv.train.objectives.cross_entropy as module
import qkv.train.objectives.entropy_of_rows as rows_module
from qkv.train.objectives.cross_entropy import cross_entropy_of_states, smoothed_cross_entropy


def random_case(rows: int = 4, width: int = 5, vocabulary: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    logits = torch.randn(rows, width, vocabulary, dtype=torch.float64) * 3
    wanted = torch.randint(0, vocabulary, (rows, width))
    real = torch.arange(width) < torch.tensor([5, 1, 3, 4])[:, None]
    return logits, wanted, real


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("at_once", [1, 7 * 3, 2**24])
def test_value_and_gradient_equal_torch(smoothing: float, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "WIDENED_IN_CACHE", at_once)
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


@pytest.mark.parametrize("computed_at_once", [1, 7 * 6, 2**24])
def test_states_may_meet_the_head_some_at_a_time(computed_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPUTED_AT_ONCE", computed_at_once)
    _, wanted, real = random_case()
    states = torch.randn(20, 3, dtype=torch.float64, requires_grad=True)
    head = nn.Linear(3, 7).double()
    total, likelihood = cross_entropy_of_states(head, states, wanted.flatten(), real.flatten(), 0.1, 7)
    gradients = torch.autograd.grad(total, [states, head.weight])
    expected, expected_likelihood = smoothed_cross_entropy(head(states), wanted.flatten(), real.flatten(), 0.1)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(likelihood, expected_likelihood)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, [states, head.weight]))
    with torch.no_grad():
        again, _ = cross_entropy_of_states(head, states, wanted.flatten(), real.flatten(), 0.1, 7)
    torch.testing.assert_close(again, expected)
