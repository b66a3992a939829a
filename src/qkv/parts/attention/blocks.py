"""A visibility rule as a map of tiles: what a block-sparse kernel reads instead of a table of all queries and keys.

The table [q k] is cut into square tiles. A tile is seen whole, in part, or not at all; those not seen appear in no list
and cost nothing. What is seen of a tile in part is kept as bits, equal tiles once: a window of any
length has two such patterns, look-ahead one.

Shapes: r rows of the map (1 where all rows of the batch agree), n tiles along one side, m tiles in all lists,
p patterns, T the side of a tile, W = T/32 words of bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.parts.attention.visibility import Mask, Rule, Tokens
from qkv.parts.recording import hold
from qkv.parts.uncompiled import uncompiled

TILE = 128
WORD = 32  # bits of a word
AT_ONCE = 1 << 26  # entries of the table that are looked at in one go
IN_CACHE = 1 << 20  # on a CPU, whose cache they must not leave: several times as fast


@dataclass(frozen=True, eq=False)
class TileLists:
    """For each tile along one side, the tiles of the other that it meets: first those seen whole, then the others."""

    begin: Tensor  # [r·n + 1] where in `tiles` a list begins, and where the last one ends
    partial: Tensor  # [r·n] where in a list the tiles seen in part begin
    tiles: Tensor  # [m]
    pattern: Tensor  # [m] which pattern says what is seen; 0 for a tile seen whole

    @staticmethod
    def of(visible: Tensor, whole: Tensor, pattern: Tensor) -> TileLists:
        """visible, whole, pattern [r n other]"""
        counts, wholes = visible.flatten(0, 1).sum(1), whole.flatten(0, 1).sum(1)  # [r·n]
        ends = counts.cumsum(0)
        begin = F.pad(ends, (1, 0)).int()
        # Whole ones first, then those in part; hidden ones come last and are cut off.
        others = visible.shape[2]
        order = torch.arange(others, device=visible.device) + others * ((~whole).int() + (~visible).int())
        order, tiles = order.flatten(0, 1).sort(-1)
        kept = torch.arange(others, device=visible.device) < counts[:, None]
        return TileLists(
            begin,
            begin[:-1] + wholes.int(),
            tiles[kept].int(),
            pattern.flatten(0, 1).gather(1, tiles)[kept].int(),
        )

    def row(self, tile: int) -> list[tuple[int, int | None]]:
        """(tile of the other side, its pattern or None where it is seen whole) of one list."""
        first, partial, last = int(self.begin[tile]), int(self.partial[tile]), int(self.begin[tile + 1])
        tiles, patterns = self.tiles[first:last].tolist(), self.pattern[first:last].tolist()
        wholes = partial - first
        return [(t, None if i < wholes else p) for i, (t, p) in enumerate(zip(tiles, patterns, strict=True))]


@dataclass(frozen=True, eq=False)
class TileMap:
    """A mask, cut into tiles."""

    rows: int  # r: 1, or one map for each row of the batch
    of_queries: TileLists  # the tiles of keys that each tile of queries meets
    of_keys: TileLists  # and the other way round, for the gradients of keys and values
    patterns: Tensor  # [p T W] int32: bit i of word w says whether key 32·w + i of the tile is seen

    def seen(self, pattern: int) -> Tensor:
        """A pattern as booleans. [T T]"""
        bits = torch.arange(WORD, device=self.patterns.device)
        return (self.patterns[pattern][..., None] >> bits & 1).bool().flatten(-2)


@uncompiled  # how many tiles are seen is known when it has been looked at, not before
def tile_map(mask: Mask) -> TileMap:
    """The map of a mask. Maps that depend on no batch are kept, by the value of the rule."""
    query, key = mask.query, mask.key
    if query.rows is None and key.rows is None:
        return hold(_kept_map(mask.rule, query.size, query.start, key.size, key.start, str(mask.device)))
    return mask.lowered("tiles", lambda: _cut(mask.rule, query, key, mask.device))


@lru_cache(maxsize=64)
def _kept_map(rule: Rule, queries: int, query_start: int, keys: int, key_start: int, device: str) -> TileMap:
    with torch.inference_mode(False):  # a map first made while decoding serves training later
        return _cut(rule, Tokens(queries, query_start), Tokens(keys, key_start), device)


def _cut(rule: Rule, query: Tokens, key: Tokens, device: torch.device | str) -> TileMap:
    """Look at the whole table once, some rows of tiles at a time."""
    rows = query.rows or key.rows or 1
    query_tiles, key_tiles = -(-query.size // TILE), -(-key.size // TILE)
    entries = min(AT_ONCE, IN_CACHE) if torch.device(device).type == "cpu" else AT_ONCE
    at_once = max(1, entries // (rows * TILE * TILE * key_tiles))
    states, bits = [], []
    for first in range(0, query_tiles, at_once):
        some = query.part(first * TILE, (first + at_once) * TILE)
        table = rule.sees(some.sight(device, dim=2), key.sight(device, dim=1)).expand(rows, some.size, key.size)
        table = F.pad(table, (0, key_tiles * TILE - key.size, 0, -table.shape[1] % TILE))  # nobody sees beyond the end
        tiles = table.unflatten(2, (-1, TILE)).unflatten(1, (-1, TILE)).transpose(2, 3)  # [r n n' T T]
        anything, everything = tiles.flatten(3).any(-1), tiles.flatten(3).all(-1)
        states.append((anything, everything))
        bits.append(_words(tiles[anything & ~everything]))
    visible, whole = (torch.cat(each, 1) for each in zip(*states, strict=True))  # [r n n'] each
    words = torch.cat(bits)  # [tiles in part, T, W], in the order of the table read chunk by chunk
    in_part = visible & ~whole
    numbers = torch.arange(len(words), device=words.device)
    if rows == 1:  # tiles repeat themselves along the diagonal: keep each kind once
        words, numbers = torch.unique(words, dim=0, return_inverse=True)
    pattern = torch.zeros(visible.shape, dtype=torch.long, device=words.device)
    pattern[_chunk_order(in_part, at_once)] = numbers
    return TileMap(
        rows,
        TileLists.of(visible, whole, pattern),
        TileLists.of(visible.transpose(1, 2), whole.transpose(1, 2), pattern.transpose(1, 2)),
        words,
    )


def _chunk_order(in_part: Tensor, at_once: int) -> tuple[Tensor, ...]:
    """Where the tiles seen in part stand, in the order in which chunks of the table were read."""
    places = [
        torch.stack(chunk.nonzero(as_tuple=True)) + torch.tensor([[0], [first * at_once], [0]], device=in_part.device)
        for first, chunk in enumerate(in_part.split(at_once, 1))
    ]
    return tuple(torch.cat(places, 1))


def _words(tiles: Tensor) -> Tensor:
    """Booleans as bits. [p T T] → [p T W] int32"""
    bits = torch.arange(WORD, device=tiles.device)
    return (tiles.unflatten(-1, (-1, WORD)).long() << bits).sum(-1).int()  # bit 31 wraps into the sign
