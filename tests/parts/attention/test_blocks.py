"""Tile maps against the tables they stand for."""

import pytest
import torch
from torch import Tensor

from qkv.parts.attention import blocks
from qkv.parts.attention.blocks import TILE, TileMap, tile_map
from qkv.parts.attention.visibility import Causal, Everything, Mask, Rule, Tokens, Window
from tests.parts.attention.cases import SITUATIONS, mask


def tables(tiles: TileMap, queries: int, keys: int) -> tuple[Tensor, Tensor]:
    """The table as the lists of the queries tell it, and as those of the keys do. [r q k] each, in whole tiles"""
    down, across = -(-queries // TILE), -(-keys // TILE)
    by_queries = torch.zeros(tiles.rows, down * TILE, across * TILE, dtype=torch.bool)
    by_keys = by_queries.clone()

    def fill(table: Tensor, row: int, query: int, key: int, pattern: int | None) -> None:
        place = (row, slice(query * TILE, (query + 1) * TILE), slice(key * TILE, (key + 1) * TILE))
        assert not table[place].any(), "a tile stands in a list twice"
        table[place] = True if pattern is None else tiles.seen(pattern)

    for row in range(tiles.rows):
        for query in range(down):
            for key, pattern in tiles.of_queries.row(row * down + query):
                fill(by_queries, row, query, key, pattern)
        for key in range(across):
            for query, pattern in tiles.of_keys.row(row * across + key):
                fill(by_keys, row, query, key, pattern)
    return by_queries, by_keys


@pytest.mark.parametrize("at_once", [1 << 26, 1 << 14], ids=["at once", "in parts"])
@pytest.mark.parametrize("size", [1, 128, 300])
@pytest.mark.parametrize("name", SITUATIONS)
def test_a_map_is_its_table(name: str, size: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "AT_ONCE", at_once)
    blocks._kept_map.cache_clear()
    m = mask(SITUATIONS[name], size)
    for table in tables(tile_map(m), size, size):
        assert torch.equal(table[:, :size, :size], m.dense[:, 0].expand(len(table), size, size))
        assert not table[:, size:].any()
        assert not table[:, :, size:].any()


@pytest.mark.parametrize(("queries", "start", "keys"), [(1, 299, 300), (130, 170, 300), (300, 0, 130)])
def test_queries_and_keys_may_differ_in_number(queries: int, start: int, keys: int) -> None:
    m = Mask(Causal() & Window(40), Tokens(queries, start), Tokens(keys), "cpu")
    for table in tables(tile_map(m), queries, keys):
        assert torch.equal(table[:, :queries, :keys], m.dense[:, 0])


@pytest.mark.parametrize(
    ("rule", "listed", "patterns"),
    [
        (Everything(), 32 * 32, 0),
        (Causal(), 32 * 33 // 2, 1),  # the diagonal is seen in part, always the same part
        (
            Causal() & Window(512),
            28 * 5 + 4 + 3 + 2 + 1,
            2,
        ),  # the diagonal, three whole tiles, the far end of the window
        (~Everything(), 0, 0),
    ],
)
def test_what_is_listed_is_what_is_seen(rule: Rule, listed: int, patterns: int) -> None:
    tiles = tile_map(Mask(rule, Tokens(4096), Tokens(4096), "cpu"))
    assert len(tiles.of_queries.tiles) == len(tiles.of_keys.tiles) == listed
    assert len(tiles.patterns) == patterns


def test_a_map_that_depends_on_no_batch_is_kept() -> None:
    def made() -> TileMap:
        return tile_map(Mask(Causal() & Window(77), Tokens(200), Tokens(200), "cpu"))

    assert made() is made()
