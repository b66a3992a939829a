"""Gradients of several maps side by side, against torch's operations.

pytest -m gpu tests/parts; without a GPU, TRITON_INTERPRET=1 lets Triton's interpreter read the program.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor, nn

from qkv.parts import joined_map
from qkv.parts.linear import JoinedLinear

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
in_triton = pytest.mark.skipif(False, reason="") if INTERPRETED else pytest.mark.gpu
DEVICE = "cpu" if INTERPRETED else "cuda"
KIND = torch.float32 if INTERPRETED else torch.bfloat16


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_map, "runs_operators", lambda x: True)
    monkeypatch.setattr(joined_map, "NARROW", (torch.float32,))
    monkeypatch.setattr(joined_map, "ENOUGH", 1)
    monkeypatch.setattr(joined_map, "LONG", 1)


@pytest.mark.parametrize("bias", [True, ("query", "value")])
def test_maps_and_gradients_are_those_of_one_product(everywhere: None, bias: bool | tuple[str, ...]) -> None:
    torch.manual_seed(0)
    joined = JoinedLinear(8, {"query": 128, "key": 64, "value": 64}, bias=bias)
    nn.init.normal_(joined.bias)
    x = torch.randn(2, 5, 8, requires_grad=True)
    learned = [x, joined.weight, joined.bias]
    expected = joined.together(x).split([128, 64, 64], -1)
    slopes = [torch.randn_like(each) for each in expected]
    right = torch.autograd.grad(expected, learned, slopes)
    assert joined_map.fits(x, joined)
    found = joined(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, learned, slopes), right, atol=1e-4, rtol=1e-4)


def test_other_maps_stay_one_product(everywhere: None) -> None:
    x = torch.randn(2, 5, 8)
    assert not joined_map.fits(x, JoinedLinear(8, {"query": 32, "key": 64}))  # no multiple of what is read at a time
    assert not joined_map.fits(x, JoinedLinear(8, {"query": 64, "key": 64}, bias=False))  # nothing to sum
    frozen = JoinedLinear(8, {"query": 64, "key": 64}).requires_grad_(False)
    assert not joined_map.fits(x, frozen)
    with torch.no_grad():
        assert not joined_map.fits(x, JoinedLinear(8, {"query": 64, "key": 64}))


@in_triton
@pytest.mark.parametrize(("rows", "sizes"), [(1, (64, 64)), (300, (128, 64, 64)), (4100, (64, 64, 192)), (0, (64, 64))])
def test_the_program(rows: int, sizes: tuple[int, ...]) -> None:
    from qkv.parts.joined_map_triton import side_by_side

    torch.manual_seed(0)
    apart = torch.randn(rows, sum(sizes) + 8, device=DEVICE).to(KIND)
    parts: list[Tensor] = [part.clone() for part in apart[:, :-8].split(sizes, 1)]
    parts[-1] = apart[:, -sizes[-1] - 8 : -8]  # rows with gaps
    whole, sums = torch.empty(rows, sum(sizes), device=DEVICE, dtype=KIND), torch.empty(sum(sizes), device=DEVICE)
    side_by_side(parts, whole, sums)
    assert torch.equal(whole, torch.cat(parts, 1))
    torch.testing.assert_close(sums.double(), whole.double().sum(0), atol=1e-3, rtol=1e-5)
