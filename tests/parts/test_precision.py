"""Wide enough, and no wider."""

import pytest
import torch
from torch import nn

from qkv.parts.precision import narrow_copies, narrow_copy, widened


@pytest.mark.parametrize(
    ("given", "wide"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_narrow_numbers_are_widened_and_wide_ones_stay(given: torch.dtype, wide: torch.dtype) -> None:
    assert widened(torch.zeros(2, dtype=given)).dtype == wide


def test_what_is_wide_is_not_copied() -> None:
    x = torch.zeros(2)
    assert widened(x) is x


def test_narrow_copies_are_made_once_for_those_inside() -> None:
    one, two = nn.Parameter(torch.randn(3, 5)), nn.Parameter(torch.randn(7))
    with narrow_copies([one, two], torch.bfloat16):
        found = narrow_copy(one, torch.bfloat16)
        assert found is narrow_copy(one, torch.bfloat16)
        assert torch.equal(found, one.detach().bfloat16())
        assert not found.requires_grad
        assert narrow_copy(one, torch.float16).dtype == torch.float16
        assert narrow_copy(nn.Parameter(torch.zeros(2)), torch.bfloat16).dtype == torch.bfloat16
    with torch.no_grad():
        one.add_(1.0)
    assert torch.equal(narrow_copy(one, torch.bfloat16), one.detach().bfloat16())
