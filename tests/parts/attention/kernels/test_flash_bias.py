"""A bias that learns, and dropout, by programs: gradients are summed tile by tile, in a fixed order, against the
algorithm in torch's operations.

pytest -m gpu tests/parts; without a GPU, TRITON_INTERPRET=1 lets Triton's interpreter read them.
"""

from __future__ import annotations

import os

import pytest
import torch

from qkv.parts.attention.bands import band_of
from qkv.parts.attention.blocks import tile_map
from qkv.parts.attention.kernels import flash_tiled
from qkv.parts.attention.kernels.flash_dropout import Lot
from qkv.parts.attention.visibility import Causal, Everything, Mask, NotPadding, Rule, Tokens, Window
from tests.parts.attention.kernels.compare import assert_same

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
DEVICE = "cpu" if INTERPRETED else "cuda"
ROWS, HEADS, WIDTH = 3, 2, 16
LENGTHS = torch.tensor([70, 33, 1])


@pytest.mark.parametrize(
    "shape", [(1, HEADS, 70, 70), (1, 1, 70, 70), (ROWS, HEADS, 70, 70), (1, HEADS, 1, 70)], ids=str
)
@pytest.mark.parametrize(
    ("rule", "tokens"),
    [
        (Everything(), Tokens(70)),
        (Causal(), Tokens(70)),
        (Causal() & Window(9), Tokens(70)),
        (NotPadding(), Tokens.padded(LENGTHS, 70)),
    ],
    ids=["all", "look-ahead", "window", "padded"],
)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_are_those_of_the_algorithm(
    rule: Rule, tokens: Tokens, shape: tuple[int, ...], dropout: float
) -> None:
    from qkv.parts.attention.kernels import flash_triton

    torch.manual_seed(0)
    if tokens.documents is not None:
        tokens = Tokens(70, documents=tokens.documents.to(DEVICE))
    mask = Mask(rule, tokens, tokens, DEVICE)
    q, k, v, pull = (torch.randn(ROWS, 70, HEADS, WIDTH, device=DEVICE).transpose(1, 2) for _ in range(4))
    bias = torch.randn(shape, device=DEVICE)
    band, lot = band_of(mask), Lot(torch.tensor([2**31 - 9], device=DEVICE), dropout) if dropout else None
    assert band is not None
    mine = flash_triton.forward(q, k, v, bias, band, 0.3, lot)
    theirs = flash_tiled.forward(q, k, v, bias, tile_map(mask), 0.3, lot)
    found = flash_triton.backward(q, k, v, bias, band, 0.3, *mine, pull, lot)
    expected = flash_tiled.backward(q, k, v, bias, tile_map(mask), 0.3, *theirs, pull, lot)
    names = ("o", "q", "k", "v", "bias")
    mine_named, theirs_named = (
        dict(zip(names, each, strict=True)) for each in ((mine[0], *found), (theirs[0], *expected))
    )
    assert_same(mine_named, theirs_named, atol=1e-4, rtol=1e-4)
    assert torch.equal(found[3], flash_triton.backward(q, k, v, bias, band, 0.3, *mine, pull, lot)[3])
