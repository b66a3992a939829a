"""Activations of programs against their formulas.

pytest -m gpu tests/parts; without a GPU, TRITON_INTERPRET=1 lets Triton's interpreter read them.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from qkv.parts.feedforward import ACTIVATIONS

triton = pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
DEVICE = "cpu" if INTERPRETED else "cuda"
NAMES = ["relu", "silu", "gelu", "gelu_tanh", "gelu_quick"]


def by_program(x: Tensor, name: str) -> Tensor:
    from qkv.generate.step_programs import activate

    y = torch.empty_like(x)
    activate[(1, triton.cdiv(len(x), 1024))](x, y, len(x), ACTIVATION=name, GATED=False, STEP=1024, EARLY=False)
    return y


@pytest.mark.parametrize("name", NAMES)
def test_they_are_their_formulas(name: str) -> None:
    x = torch.linspace(-12, 12, 24001, device=DEVICE)
    expected = ACTIVATIONS[name](x.double())
    found = by_program(x, name).double()
    torch.testing.assert_close(found, expected, atol=6e-7, rtol=3e-7)
    if name.startswith("gelu"):  # what is left of small inputs is right too
        tail = (x < 0) & (x > -4.5)
        torch.testing.assert_close(found[tail], expected[tail], atol=0, rtol=5e-4)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_number_stays_none_and_huge_numbers_stay_themselves(name: str) -> None:
    x = torch.tensor([float("nan"), float("inf"), 3e38, -3e38, 0.0], device=DEVICE)
    found = by_program(x, name).tolist()
    assert found[0] != found[0]
    assert found[1] == float("inf")
    assert found[2:] == pytest.approx([3e38, 0.0, 0.0], rel=1e-6, abs=1e-6)
