"""Bands against the tables they stand for."""

import pytest
import torch

from qkv.parts.attention.bands import band_of
from qkv.parts.attention.visibility import Causal, Mask, Tokens, Window
from tests.parts.attention.cases import SITUATIONS, mask

BANDS = {"everything", "causal", "window"}


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_band_is_its_table(name: str) -> None:
    m = mask(SITUATIONS[name], 20)
    band = band_of(m)
    assert (band is not None) == (name in BANDS)
    if band is not None:
        distance = torch.arange(20)[:, None] - torch.arange(20)
        assert torch.equal((distance >= band[0]) & (distance <= band[1]), m.dense[0, 0].expand(20, 20))


@pytest.mark.parametrize(("queries", "start", "keys"), [(1, 9, 10), (4, 3, 10), (10, 0, 4)])
def test_queries_may_begin_later_than_keys(queries: int, start: int, keys: int) -> None:
    m = Mask(Causal() & Window(3), Tokens(queries, start), Tokens(keys), "cpu")
    band = band_of(m)
    assert band is not None
    distance = torch.arange(queries)[:, None] - torch.arange(keys)
    assert torch.equal((distance >= band[0]) & (distance <= band[1]), m.dense[0, 0])
