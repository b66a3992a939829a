"""The loss over a vocabulary by programs, against torch's own in float64 on the same GPU.

pytest -m gpu tests/train
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import qkv.train.objectives.linear_cross_entropy as module
from qkv.parts.heads import LogitHead
from qkv.train.objectives.cross_entropy import cross_entropy_of_states, smoothed_cross_entropy

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
ROWS, WIDTH, VOCABULARY = 300, 64, 5003  # more than a program takes at once, and no multiple of anything
HALF, SINGLE = torch.bfloat16, torch.float32


def targets() -> tuple[Tensor, Tensor]:
    real = torch.rand(ROWS) > 0.2
    return torch.randint(0, VOCABULARY, (ROWS,)).to(DEVICE), real.to(DEVICE)


def close(found: Tensor, exact: Tensor, part: float) -> None:
    """But for so much of the largest number."""
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=part * exact.abs().max().item())


@pytest.mark.parametrize(("kind", "smoothing", "part"), [(HALF, 0.1, 0.01), (HALF, 0.0, 0.01), (SINGLE, 0.1, 1e-5)])
def test_of_logits(kind: torch.dtype, smoothing: float, part: float) -> None:
    wanted, real = targets()
    logits = (4 * torch.randn(ROWS, VOCABULARY, device=DEVICE)).to(kind)
    wide = logits.double().requires_grad_()
    logits[~real] = torch.nan
    logits.requires_grad_()
    total, likelihood = smoothed_cross_entropy(logits, wanted, real, smoothing)
    (gradient,) = torch.autograd.grad(total * 0.37, logits)
    exact = F.cross_entropy(wide[real], wanted[real], label_smoothing=smoothing, reduction="sum")
    (exact_gradient,) = torch.autograd.grad(exact * 0.37, wide)
    assert total.item() == pytest.approx(exact.item(), rel=1e-5)
    assert likelihood.item() == pytest.approx(
        F.cross_entropy(wide[real], wanted[real], reduction="sum").item(), rel=1e-5
    )
    close(gradient, exact_gradient, part)
    assert gradient[~real].abs().max() == 0


@pytest.mark.parametrize(("kind", "part"), [(HALF, 0.02), (SINGLE, 1e-4)])
def test_of_states(kind: torch.dtype, part: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOM_ON_GPU", 4 * 64 * VOCABULARY)  # in several turns
    wanted, real = targets()
    head = LogitHead(WIDTH, VOCABULARY, bias=True).to(DEVICE)
    torch.nn.init.normal_(head.bias)
    states = torch.randn(ROWS, WIDTH, device=DEVICE)
    states[~real] = torch.nan
    states.requires_grad_()
    inputs = [states, head.weight, head.bias]

    def measured() -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        with torch.autocast(DEVICE, HALF, enabled=kind == HALF):
            total, likelihood = cross_entropy_of_states(head, states, wanted, real, 0.1, VOCABULARY)
        return total, likelihood, torch.autograd.grad(total * 0.37, inputs)

    total, likelihood, gradients = measured()
    wide = [each.detach().nan_to_num(0.0).to(kind).double().requires_grad_() for each in inputs]
    logits = F.linear(*wide)[real]
    exact = F.cross_entropy(logits, wanted[real], label_smoothing=0.1, reduction="sum")
    assert total.item() == pytest.approx(exact.item(), rel=part / 10)
    assert likelihood.item() == pytest.approx(
        F.cross_entropy(logits, wanted[real], reduction="sum").item(), rel=part / 10
    )
    for found, expected in zip(gradients, torch.autograd.grad(exact * 0.37, wide), strict=True):
        assert found.dtype == torch.float32
        close(found, expected, part)
    again = measured()
    assert again[0].item() == total.item()
    assert all(torch.equal(one, other) for one, other in zip(again[2], gradients, strict=True))
    with torch.no_grad(), torch.autocast(DEVICE, HALF, enabled=kind == HALF):
        alone, _ = cross_entropy_of_states(head, states, wanted, real, 0.1, VOCABULARY)
    assert alone.item() == pytest.approx(total.item(), rel=1e-6)
