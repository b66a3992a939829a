"""FlashAttention's algorithm in torch ops: what the GPU kernel of `flash_triton.py` does, tile by tile. [dao2022 alg.1]

The softmax of a row is gathered while its tiles of keys pass by. With m the largest score so far, l the sum of
exp(score - m) and a = Σ exp(score - m)·v, a further tile with largest score m' changes them to

    m ← max(m, m')      l ← l·exp(m_old - m) + Σ exp(s - m)      a ← a·exp(m_old - m) + exp(s - m)·v

and at the end a/l is the attention and m + log l the logarithm of the softmax's sum: all it takes to make a tile's
weights again on the way back, P = exp(s - (m + log l)), without ever having kept them.

Shapes: b rows, h query heads, g key/value heads, q queries, k keys, d width of a key, e of a value, T side of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from qkv.parts.attention.blocks import TILE, TileLists, TileMap
from qkv.parts.attention.kernels.flash_dropout import Lot


def forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, tiles: TileMap, scale: float, lot: Lot | None = None
) -> tuple[Tensor, Tensor]:
    """(the attention [b h q e], the logarithm of each softmax's sum [b h q]: +∞ for a query that sees nothing)."""
    k, v = _for_each_head(k, q), _for_each_head(v, q)
    o = like_a_stream(q, v.shape[3]).zero_()
    log_sum = q.new_full(q.shape[:3], torch.inf, dtype=torch.float32)
    for batch, query, met in _walk(tiles, tiles.of_queries, q.shape[0], q.shape[2]):
        largest = torch.full_like(q[batch, :, query, :1], -torch.inf, dtype=torch.float32)  # [b h T 1]
        total = torch.zeros_like(largest)
        gathered = torch.zeros_like(o[batch, :, query], dtype=torch.float32)  # [b h T e]
        for key, seen in met:
            s = _scores(q, k, bias, batch, query, key, seen, scale)  # [b h T T]
            higher = torch.maximum(largest, s.amax(-1, keepdim=True))
            level = higher.masked_fill(higher == -torch.inf, 0.0)  # nothing seen yet: exp(-∞ - 0) is 0
            p, shrink = (s - level).exp(), (largest - level).exp()
            total = total * shrink + p.sum(-1, keepdim=True)
            if lot is not None:
                p = p * lot.factor(batch, q.shape[1], query, key, k.shape[2])
            gathered = gathered * shrink + (p.to(v.dtype) @ v[batch, :, key]).float()
            largest = higher
        o[batch, :, query] = (gathered / total.masked_fill(total == 0, 1.0)).to(o.dtype)
        log_sum[batch, :, query] = (largest + total.log()).masked_fill(total == 0, torch.inf)[..., 0]
    return o, log_sum


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    tiles: TileMap,
    scale: float,
    o: Tensor,
    log_sum: Tensor,
    from_above: Tensor,
    lot: Lot | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of q, k, v and, where there is one, of the bias. [dao2022 alg.4]

    With P the weights and D = Σ_e o·do [b h q]:  dv = Pᵀ do,  dS = P ∘ (do vᵀ - D),  dq = dS k,  dk = dSᵀ q.
    Under dropout dv and do vᵀ see its factors, and D, the sum of P ∘ do vᵀ over the keys, already has.
    """
    shared_by = q.shape[1] // k.shape[1]
    wide_k, wide_v = _for_each_head(k, q), _for_each_head(v, q)
    dq, dk, dv = (torch.zeros_like(each, dtype=torch.float32) for each in (q, wide_k, wide_v))
    dbias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
    difference = (o.float() * from_above.float()).sum(-1)  # [b h q]
    for batch, query, met in _walk(tiles, tiles.of_queries, q.shape[0], q.shape[2]):
        above = from_above[batch, :, query]
        for key, seen in met:
            s = _scores(q, wide_k, bias, batch, query, key, seen, scale)
            p = (s - log_sum[batch, :, query, None]).exp()  # [b h T T]
            dp = (above @ wide_v[batch, :, key].transpose(-1, -2)).float()
            left = p
            if lot is not None:
                factor = lot.factor(batch, q.shape[1], query, key, k.shape[2])
                left, dp = p * factor, dp * factor
            ds = p * (dp - difference[batch, :, query, None])
            narrow = ds.to(q.dtype)
            dv[batch, :, key] += (left.to(above.dtype).transpose(-1, -2) @ above).float()
            dq[batch, :, query] += (narrow @ wide_k[batch, :, key]).float() * scale
            dk[batch, :, key] += (narrow.transpose(-1, -2) @ q[batch, :, query]).float() * scale
            if dbias is not None:
                place = _place_in_bias(dbias, batch, query, key)
                dbias[place] += ds.sum_to_size(dbias[place].shape)
    dk, dv = (each.unflatten(1, (-1, shared_by)).sum(2) for each in (dk, dv))
    dq, dk, dv = (like_a_stream(x, x.shape[3]).copy_(dx) for x, dx in ((q, dq), (k, dk), (v, dv)))
    return dq, dk, dv, dbias if bias is None or dbias is None else dbias.to(bias.dtype)


def _walk(
    tiles: TileMap, lists: TileLists, batch: int, queries: int
) -> Iterator[tuple[slice, slice, list[tuple[slice, Tensor | None]]]]:
    """(rows of the batch, a tile of queries, the tiles of keys it meets with what is seen of them)."""
    each = -(-queries // TILE)
    for row in range(tiles.rows):
        rows = slice(0, batch) if tiles.rows == 1 else slice(row, row + 1)
        for tile in range(each):
            query = slice(tile * TILE, min((tile + 1) * TILE, queries))
            met = [
                (slice(other * TILE, (other + 1) * TILE), None if pattern is None else tiles.seen(pattern))
                for other, pattern in lists.row(row * each + tile)
            ]
            yield rows, query, met


def _scores(
    q: Tensor, k: Tensor, bias: Tensor | None, batch: slice, query: slice, key: slice, seen: Tensor | None, scale: float
) -> Tensor:
    """The scores of one tile, hidden ones -∞. [b h T T], smaller at the ends of the table"""
    s = (q[batch, :, query] @ k[batch, :, key].transpose(-1, -2)).float() * scale
    if bias is not None:
        s = s + bias[_place_in_bias(bias, batch, query, key)].float()
    return s if seen is None else s.masked_fill(~seen[: s.shape[2], : s.shape[3]], -torch.inf)


def _place_in_bias(bias: Tensor, batch: slice, query: slice, key: slice) -> tuple[slice, ...]:
    """A bias may have one row for the whole batch, or one for all queries. [1|b 1|h 1|q k]"""
    every = slice(None)
    return batch if bias.shape[0] > 1 else every, every, query if bias.shape[2] > 1 else every, key


def _for_each_head(shared: Tensor, q: Tensor) -> Tensor:
    """Keys or values [b g k d] for each query head. [b h k d]"""
    return shared.repeat_interleave(q.shape[1] // shared.shape[1], 1)


def like_a_stream(x: Tensor, width: int) -> Tensor:
    """Room for [b h s width] that lies in memory as [b s h width], as what comes after attention reads it."""
    return x.new_empty(x.shape[0], x.shape[2], x.shape[1], width).transpose(1, 2)
