"""Wide enough, and no wider."""

import pytest
import torch

from qkv.parts.precision import widened


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
