"""Bands against the tables they stand for."""

import pytest
import torch
from torch import Tensor

from qkv.parts.attention.bands import Band, Runs, band_of
from qkv.parts.attention.blocks import TILE
from qkv.parts.attention.visibility import Causal, Mask, SameDocument, Tokens, Window
from tests.parts.attention.cases import SITUATIONS, mask

BANDS = {"everything", "causal", "window", "all but the near past", "packed", "packed, causal window"}
BANDS |= {f"{start}{side}" for start in ("padded ", "causal, padded ") for side in ("left", "right")}


def table(band: Band, queries: int, keys: int) -> Tensor:
    """What a band shows. [1|r q k]"""
    distance = torch.arange(queries)[:, None] - torch.arange(keys)
    seen = ((distance >= band.least) & (distance <= band.most))[None]
    if band.runs is None:
        return seen
    mine, theirs = band.runs.of_queries[:, :, None], band.runs.of_keys[:, None, :]
    return seen & (mine == theirs) & (theirs > 0)


@pytest.mark.parametrize("size", [20, 300])
@pytest.mark.parametrize("name", SITUATIONS)
def test_a_band_is_its_table(name: str, size: int) -> None:
    m = mask(SITUATIONS[name], size)
    band = band_of(m)
    assert (band is not None) == (name in BANDS)
    if band is not None:
        assert torch.equal(table(band, size, size), m.dense[:, 0].expand(-1, size, size))


@pytest.mark.parametrize(("queries", "start", "keys"), [(1, 9, 10), (4, 3, 10), (10, 0, 4)])
def test_queries_may_begin_later_than_keys(queries: int, start: int, keys: int) -> None:
    m = Mask(Causal() & Window(3), Tokens(queries, start), Tokens(keys), "cpu")
    band = band_of(m)
    assert band is not None
    assert torch.equal(table(band, queries, keys)[0], m.dense[0, 0])


def test_each_tile_is_told_the_ends_of_what_it_may_meet() -> None:
    """Also where documents return, where a side has some that the other lacks, and where there is padding alone."""
    torch.manual_seed(0)
    queries, keys = torch.randint(0, 9, (4, 300)), torch.randint(0, 7, (4, 200))
    queries[1] = queries[1].sort().values
    keys[1] = keys[1].sort().values
    queries[3] = 0
    runs = Runs.of(queries, keys)
    seen = (queries[:, :, None] == keys[:, None, :]) & (keys[:, None, :] > 0)
    for met, side in ((runs.keys_met, seen), (runs.queries_met, seen.transpose(1, 2))):
        assert met.shape == (4, -(-side.shape[1] // TILE), 2)
        for row in range(4):
            for tile in range(met.shape[1]):
                slots = side[row, tile * TILE : (tile + 1) * TILE].any(0).nonzero()[:, 0]
                first, last = met[row, tile].tolist()
                assert first >= last if not len(slots) else (first, last) == (int(slots[0]), int(slots[-1]) + 1)


def test_a_mask_is_lowered_once() -> None:
    side = Tokens(9, documents=torch.ones(2, 9, dtype=torch.long))
    m = Mask(Causal() & SameDocument(), side, side, "cpu")
    assert band_of(m) is band_of(m)
