"""Wide enough, and no wider."""

import pytest
import torch
from torch import nn

from qkv.parts.precision import NarrowCopies, narrow_copy, widened


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


def test_copies_of_weights_that_the_last_pass_asked_for_are_there_at_once() -> None:
    one, two, copies = nn.Parameter(torch.randn(3, 5)), nn.Parameter(torch.randn(7)), NarrowCopies()
    with copies.at_hand(torch.bfloat16):
        assert narrow_copy(one, torch.bfloat16) is not narrow_copy(one, torch.bfloat16)  # nobody knew
    with torch.no_grad():
        one.add_(1.0)
    with copies.at_hand(torch.bfloat16):
        found = narrow_copy(one, torch.bfloat16)
        assert found is narrow_copy(one, torch.bfloat16)
        assert torch.equal(found, one.detach().bfloat16())
        assert not found.requires_grad
        assert narrow_copy(one, torch.float16).dtype == torch.float16
        assert torch.equal(narrow_copy(two, torch.bfloat16), two.detach().bfloat16())
        assert torch.equal(narrow_copy(one, torch.float32), one)
    assert narrow_copy(one, torch.bfloat16) is not narrow_copy(one, torch.bfloat16)  # it is over
    with copies.at_hand(torch.bfloat16):
        assert copies.made.keys() == {id(one), id(two)}
    with copies.at_hand(torch.bfloat16):
        assert not copies.made  # nobody asked
