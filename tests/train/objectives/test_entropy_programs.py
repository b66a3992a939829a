"""Programs of the loss that put slopes in the place of logits, on a GPU or, with TRITON_INTERPRET=1, on a CPU."""

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.train.objectives.entropy_of_rows import Measures, NarrowSlopes, Targets

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.slow if INTERPRETED else pytest.mark.gpu
DEVICE = "cpu" if INTERPRETED else "cuda"
ROWS = 7


def run(logits: Tensor, targets: Targets, narrow: NarrowSlopes | None = None) -> Measures:
    from qkv.train.objectives import entropy_triton

    measures = Measures.empty(len(logits), logits)
    entropy_triton.measure_and_differentiate(logits, targets, measures, narrow)
    return measures


def logits_of(vocabulary: int, width: int, kind: torch.dtype) -> Tensor:
    """Every other row of a wider matrix, whose columns behind the vocabulary are not to be looked at."""
    room = 4 * torch.randn(2 * ROWS, width + 16, generator=torch.Generator().manual_seed(width))
    room[:, vocabulary:] = torch.nan
    return room.to(DEVICE, kind)[::2, :width]


# Within one tile, a tile and a bit, tiles that are whole, one more column than there is room for, an odd width.
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("vocabulary", "width"),
    [(97, 112), (2047, 2048), (2048, 2048), (4100, 4112), (50257, 50272), (51200, 51216), (99, 99)],
)
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_measures_and_slopes_of_rows(vocabulary: int, width: int, smoothing: float, kind: torch.dtype) -> None:
    logits = logits_of(vocabulary, width, kind)
    wanted = torch.tensor([0, vocabulary - 1, 1, 50, 5, 96, 7], device=DEVICE)
    real = torch.tensor([1, 1, 0, 1, 1, 1, 1], device=DEVICE).bool()
    wide = logits[:, :vocabulary].double().requires_grad_()
    exact = F.cross_entropy(wide, wanted, label_smoothing=smoothing, reduction="none") * real
    (slopes,) = torch.autograd.grad(exact.sum(), wide)
    plain = F.cross_entropy(wide, wanted, reduction="none") * real
    logits[2] = torch.nan
    measures = run(logits, Targets(wanted, real, vocabulary, smoothing))
    torch.testing.assert_close(measures.losses.double(), exact.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(measures.likelihoods.double(), plain.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(measures.normaliser[real].double(), wide.logsumexp(-1)[real], atol=1e-5, rtol=1e-5)
    half = 2.0**-7 if INTERPRETED else 2.0**-8  # the interpreter cuts numbers off where a GPU rounds them
    rounded = half if kind == torch.bfloat16 else 1e-5
    torch.testing.assert_close(logits[:, :vocabulary].double(), slopes, atol=2e-6, rtol=rounded)
    assert not logits[2].any()
    assert not logits[:, vocabulary:].any()


@pytest.mark.parametrize(("vocabulary", "width"), [(97, 112), (4100, 4112), (51200, 51216)])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_slopes_are_written_a_second_time_in_8_bits(vocabulary: int, width: int, kind: torch.dtype) -> None:
    logits, times = logits_of(vocabulary, width, kind), 2**15
    wanted = torch.tensor([0, vocabulary - 1, 1, 50, 5, 96, 7], device=DEVICE)
    real = torch.tensor([1, 1, 0, 1, 1, 1, 1], device=DEVICE).bool()
    room = torch.full((ROWS, width + 16), 3.0, device=DEVICE).to(torch.float8_e5m2)
    run(logits, Targets(wanted, real, vocabulary, 0.1), NarrowSlopes(room[:, :width], times))
    found, slopes = room[:, :width].float() / times, logits.float()
    # Half a step of 2 bits; the interpreter cuts numbers off, and forgets to carry.
    far = (found - slopes).abs() > slopes.abs() * (0.6 if INTERPRETED else 0.13) + 2.0**-31
    assert not far.any()
    assert not found[2].any()
    assert (room[:, width:].float() == 3).all()


def test_a_token_that_is_not_in_the_vocabulary_makes_the_loss_nan() -> None:
    logits = logits_of(97, 112, torch.bfloat16)
    wanted = torch.tensor([97, 3, -1, 3, 1 << 40, 3, 3], device=DEVICE)
    measures = run(logits, Targets(wanted, torch.ones_like(wanted).bool(), 97, 0.0))
    assert measures.losses.isnan().tolist() == [True, False, True, False, True, False, False]


def test_a_row_of_the_least_numbers_and_one_with_the_largest() -> None:
    logits = logits_of(97, 112, torch.bfloat16)
    logits[0, :97] = -torch.inf
    logits[0, 5] = 1e38
    logits[1, :97] = -1e29
    measures = run(
        logits, Targets(torch.full((ROWS,), 5, device=DEVICE), torch.ones(ROWS, device=DEVICE).bool(), 97, 0.0)
    )
    assert measures.losses[0] == 0
    assert measures.losses[1].isfinite()
    assert not logits[0].any()
