"""Residual sum and norm as one step, against torch's operations one after the other.

pytest -m gpu tests/parts; without a GPU, TRITON_INTERPRET=1 lets Triton's interpreter read the programs.
"""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.parts.norm import LayerNorm, RMSNorm
from qkv.parts.sum_norm import norm_of_sum, sum_norm

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
in_triton = pytest.mark.skipif(False, reason="") if INTERPRETED else pytest.mark.gpu
DEVICE = "cpu" if INTERPRETED else "cuda"
NARROW = torch.float32 if INTERPRETED else torch.bfloat16
GIVEN = ["both", "added", "nothing"]


def some_norm(kind: str, width: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> LayerNorm | RMSNorm:
    norm = RMSNorm(width) if kind == "rms" else LayerNorm(width, bias=kind == "layer")
    with torch.no_grad():
        for each in norm.parameters():
            each.normal_(1.0)
    return norm.to(device, dtype)


def leaf(*shape: int, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Tensor:
    return torch.randn(shape, dtype=dtype, device=device).requires_grad_()


@pytest.mark.parametrize("kind", ["layer", "unshifted", "rms"])
@pytest.mark.parametrize("given", GIVEN)
def test_sum_and_norm_and_all_gradients_are_those_of_two_operations(kind: str, given: str) -> None:
    torch.manual_seed(0)
    norm = some_norm(kind, 12, torch.float64)
    x, added, bias = leaf(2, 5, 12), leaf(2, 5, 12), leaf(12)
    others = {"both": (added, bias), "added": (added, None), "nothing": (None, None)}[given]
    learned = [each for each in (x, *others, *norm.parameters()) if each is not None]
    whole = sum([each for each in others if each is not None], x)
    expected = whole, norm(whole)
    slopes = [torch.randn_like(each) for each in expected]
    right = torch.autograd.grad(expected, learned, slopes)
    found = sum_norm(x, *others, norm, torch.float64)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, learned, slopes), right)
    alone = norm_of_sum(x, *others, norm, torch.float64)
    right = torch.autograd.grad(norm(sum([each for each in others if each is not None], x)), learned, slopes[1])
    torch.testing.assert_close(torch.autograd.grad(alone, learned, slopes[1]), right)


def test_what_was_added_narrow_gets_a_narrow_gradient_and_frozen_weights_get_none() -> None:
    torch.manual_seed(0)
    norm = some_norm("layer", 8)
    norm.weight.requires_grad_(False)
    x, added = leaf(3, 8, dtype=torch.float32), leaf(3, 8, dtype=torch.bfloat16)
    total, y = sum_norm(x, added, None, norm, torch.bfloat16)
    assert (total.dtype, y.dtype) == (torch.float32, torch.bfloat16)
    (total.sum() + y.float().square().sum()).backward()
    torch.testing.assert_close(added.grad, x.grad.bfloat16())  # of one type, too
    assert norm.weight.grad is None
    assert norm.bias.grad is not None


@in_triton
@pytest.mark.parametrize(
    ("rows", "width", "kind", "given"),
    [
        (7, 12, "layer", "both"),
        (1, 1, "rms", "both"),
        (50, 64, "unshifted", "added"),
        (33, 768, "layer", "both"),
        (9, 1000, "rms", "nothing"),
        (5, 1600, "layer", "added"),
        (3, 4096, "layer", "nothing"),
        (0, 16, "layer", "both"),
    ],
)
def test_programs_there_and_back(rows: int, width: int, kind: str, given: str) -> None:
    from qkv.parts import sum_norm_triton

    torch.manual_seed(rows)
    norm = some_norm(kind, width, device=DEVICE)
    x, added = leaf(rows, width, device=DEVICE), leaf(rows, width, device=DEVICE)
    bias = leaf(width, device=DEVICE)
    others = {"both": (added, bias), "added": (added, None), "nothing": (None, None)}[given]
    rounded = [
        None if each is None else each.detach().to(NARROW if each is added else torch.float32) for each in others
    ]
    shift, epsilon = (None, norm.epsilon) if isinstance(norm, RMSNorm) else (norm.bias, norm.eps)
    wide = x.detach().float()
    total, y, statistics = torch.empty_like(wide), torch.empty_like(wide, dtype=NARROW), wide.new_empty(2, rows)
    gain = norm.weight.detach()
    sum_norm_triton.sum_norm(wide, *rounded, gain, shift, epsilon, kind == "rms", total, y, statistics)

    exact = sum([each.double() for each in rounded if each is not None], wide.double()).requires_grad_()
    exact_gain = gain.double().requires_grad_()
    exact_shift = None if shift is None else shift.detach().double().requires_grad_()
    if kind == "rms":
        normed = F.rms_norm(exact, gain.shape, exact_gain, epsilon)
    else:
        normed = F.layer_norm(exact, gain.shape, exact_gain, exact_shift, epsilon)
    step = torch.finfo(NARROW).eps
    torch.testing.assert_close(total.double(), exact.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(y.double(), normed.detach(), atol=max(step, 1e-4), rtol=max(step, 1e-4))

    of_total, of_y = torch.randn_like(total), torch.randn_like(y)
    for handed in (of_total, None):
        of_x, copy = torch.empty_like(total), torch.empty_like(total, dtype=NARROW)
        sums = gain.new_empty(3, width)
        to_added = None if given == "nothing" else copy
        how = sum_norm_triton.Backward(numbers=2048 if width < 100 else 1024, at_once=2)
        sum_norm_triton.sum_norm_back(handed, of_y, total, statistics, gain, kind == "rms", of_x, to_added, sums, how)
        learned = [exact, exact_gain, *([] if exact_shift is None else [exact_shift])]
        right, of_gain, *of_shift = torch.autograd.grad(normed, learned, of_y.double(), retain_graph=True)
        right = right if handed is None else right + handed.double()
        close = {"atol": 2e-4 * max(1.0, rows**0.5), "rtol": 2e-4}
        torch.testing.assert_close(of_x.double(), right, **close)
        torch.testing.assert_close(sums[0].double(), of_gain, **close)
        if of_shift:
            torch.testing.assert_close(sums[1].double(), of_shift[0], **close)
        if to_added is not None:
            torch.testing.assert_close(copy, of_x.to(NARROW))
            torch.testing.assert_close(sums[2].double(), right.sum(0), **close)
