"""Rows in 8 bits: what the powers of two are, and what becomes of a matrix that is turned."""

import pytest
import torch

from qkv.train.float8.rows import NARROW, rounded, turned


def test_the_largest_number_of_a_row_is_under_448_and_over_224() -> None:
    x = torch.cat([torch.randn(40, 33) * 2.0 ** torch.arange(-20, 20)[:, None], torch.full((1, 33), 448.0)])
    narrow, scales = rounded(x)
    assert narrow.dtype is NARROW
    assert scales.shape == (41, 1)
    assert torch.equal(scales.log2(), scales.log2().round())
    largest = (x.abs().amax(1, keepdim=True) / scales)[:, 0]
    assert float(largest.max()) <= 448
    assert float(largest.min()) > 224
    assert float(scales[-1]) == 1
    assert torch.equal(narrow.float() * scales, (x / scales).to(NARROW).float() * scales)
    torch.testing.assert_close(narrow.float() * scales, x, rtol=2**-4, atol=1e-3 * float(scales.max()))


@pytest.mark.parametrize("largest", [448.0, 448.0000305, 511.0, 512.0, 1.75, 1.7500001, 2.0**-49, 2.0**100])
def test_edges(largest: float) -> None:
    narrow, scales = rounded(torch.tensor([[largest, -largest / 2, 0.0]]))
    assert 224 <= largest / float(scales) <= 448
    assert not narrow.float().isnan().any()


def test_rows_lie_behind_each_other_whatever_was_given() -> None:
    for x in (torch.randn(16, 32).t(), torch.randn(32, 64)[:, ::2], torch.ones(1).expand(8, 8)):
        narrow, scales = rounded(x)
        assert narrow.is_contiguous()
        assert scales.is_contiguous()
        assert torch.equal(narrow.float(), (x / scales).to(NARROW).float())


def test_zeros_and_numbers_that_are_none() -> None:
    narrow, scales = rounded(torch.tensor([[0.0, 0.0], [1.0, torch.inf], [torch.nan, 1.0], [1.0, 2.0]]))
    assert torch.equal(narrow[0].float(), torch.zeros(2))
    assert scales[:, 0].isfinite().tolist() == [True, False, False, True]


def test_a_matrix_turned_under_one_scale_is_not_rounded_again() -> None:
    x = torch.randn(32, 16) * 2.0 ** torch.randint(-4, 4, (32, 1))
    narrow, scales = rounded(x)
    top = scales.amax()
    across, sums = turned(narrow, scales, top, scales)
    assert across.shape == (16, 32)
    assert across.is_contiguous()
    near = narrow.float() * scales
    large = near.abs() / top > 2**-6  # normal numbers
    assert large.float().mean() > 0.9
    assert torch.equal((across.float() * top).T[large], near[large])
    torch.testing.assert_close((across.float() * top).T, near, rtol=0, atol=float(top) * 2**-10)
    assert sums is not None
    torch.testing.assert_close(sums, near.sum(0))


def test_a_matrix_turned_as_it_is() -> None:
    narrow, _ = rounded(torch.randn(16, 48))
    across, sums = turned(narrow)
    assert sums is None
    assert torch.equal(across.float(), narrow.float().T)


def test_powers_of_two_are_taken_in_16_bits_as_exactly_as_in_32() -> None:
    """Of all numbers that 8 bits have, by all factors that a fold has: `rounding_programs.turn` relies on it."""
    narrow = torch.arange(256, dtype=torch.uint8).view(NARROW)[:, None]
    narrow = narrow[~narrow.float().isnan()][:, None]
    factors = 2.0 ** -torch.arange(60)
    halves, wide = narrow.half() * factors.half(), narrow.float() * factors
    assert torch.equal(halves.to(NARROW).view(torch.uint8), wide.to(NARROW).view(torch.uint8))
