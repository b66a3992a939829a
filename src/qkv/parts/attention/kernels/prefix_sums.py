"""Sums over the keys up to each query, by products of whole chunks: what attention by features is made of.

    o_t = φ(q_t) S_t,   S_t = S_{t-1} + φ(k_t) v_tᵀ      or, fading, S_t = g_t S_{t-1} + (1 - g_t) φ(k_t) v_tᵀ

Within a chunk the small table of queries and keys is formed, between chunks only sums pass: no S is kept for a token.

Shapes: b rows, h heads, n tokens, m features, e width of a value, c tokens of a chunk, t chunks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.parts.precision import widened

CHUNK = 128  # tokens
CHUNKS = 128  # of a segment at most: what they start from is gathered by a table of chunks by chunks


def beside(width: int) -> int:
    """Columns of sums beside those of values, for the denominator: at least one, to a multiple of eight."""
    return 8 - width % 8


def prefix_sums(queries: Tensor, keys: Tensor, values: Tensor, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(what each query reads [b h n e], the sums after the last token [b h m e], in float32 at least).

    queries, keys [b h n m], values [b h n e]; `before` [b h m e]: the sums of tokens before the first.
    """
    length = queries.shape[2]
    queries, keys, values = (_in_chunks(x) for x in (queries, keys, values))  # [b h t c ·]
    sums = keys.transpose(-1, -2) @ values  # [b h t m e]
    first = widened(torch.zeros_like(sums[:, :, 0]) if before is None else before)
    chunks = sums.shape[2]
    everything = sums.new_ones(*sums.shape[:2], chunks)
    start = _starts(first, everything, everything[..., None].expand(-1, -1, -1, chunks).tril(-1), sums)
    own = (queries @ keys.transpose(-1, -2)).tril()  # [b h t c c]
    o = _added(own @ values, queries, start)
    return o.flatten(2, 3)[:, :, :length], first + widened(sums.sum(2))


def fading_sums(
    queries: Tensor, keys: Tensor, values: Tensor, gates: Tensor, before: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same with sums that fade: S ← g·S + (1 - g) φ(k) vᵀ, token by token. [peng2021 eq.7]

    gates [b h n] between 0 and 1. A key of slot j reaches slot i times g_{j+1} … g_i.
    """
    length, logs = queries.shape[2], _logs(gates)
    keys = keys * (1 - gates)[..., None].to(keys.dtype)
    queries, keys, values = (_in_chunks(x) for x in (queries, keys, values))
    faded = _in_chunks(logs[..., None])[..., 0].cumsum(-1)  # [b h t c]: log of g_1 … g_i within the chunk
    to_end = (faded[..., -1:] - faded).exp()[..., None].to(keys.dtype)
    sums = (keys * to_end).transpose(-1, -2) @ values  # [b h t m e], as they are at the chunk's end
    first = widened(torch.zeros_like(sums[:, :, 0]) if before is None else before)
    ends = F.pad(faded[..., -1].cumsum(-1), (1, 0))  # [b h t+1]: log of all gates up to the end of each chunk
    reach = _falling(ends).to(sums.dtype)  # [b h t+1 t+1]: what is left of one end's sums at another end
    start = _starts(first, reach[..., :-1, 0], reach[..., :-1, 1:].contiguous(), sums)
    last = (reach[..., -1:, 1:] @ sums.flatten(3)).view_as(first)
    own = (queries @ keys.transpose(-1, -2)) * _falling(faded).to(keys.dtype)
    o = _added(own @ values, queries * faded.exp()[..., None].to(queries.dtype), start)
    return o.flatten(2, 3)[:, :, :length], first * ends[..., -1, None, None].exp() + widened(last)


def left_after(gates: Tensor) -> Tensor:
    """What is left, after each token, of all that was before the first: g_1 … g_i. [b h n]

    By logarithms: the way back of torch's own running product asks the device whether any gate is 0, and where nobody
    can tell, as of shapes without numbers, goes from token to token.
    """
    return _logs(gates).cumsum(-1).exp()


def _logs(gates: Tensor) -> Tensor:
    return widened(gates).clamp_min(1e-6).log()


def _starts(first: Tensor, left: Tensor, reach: Tensor, sums: Tensor) -> Tensor:
    """What each chunk starts from: what is `left` [b h t] of `first` [b h m e], and of the sums of chunks before it by
    `reach` [b h t t]. [b h t m e]

    One product with a small matrix: cumulative sums in float32 would be read and written several times.
    """
    of_first = first[:, :, None].to(sums.dtype) * left[..., None, None]
    return _added(of_first.flatten(3)[:, :, None], reach[:, :, None], sums.flatten(3)[:, :, None])[:, :, 0].view_as(
        sums
    )


def _added(to: Tensor, queries: Tensor, sums: Tensor) -> Tensor:
    """to [b h t c e] + queries [b h t c m] @ sums [b h t m e], in one product."""
    return torch.baddbmm(to.flatten(0, 2), queries.flatten(0, 2), sums.flatten(0, 2)).view_as(to)


def _falling(logs: Tensor) -> Tensor:
    """exp(f_i - f_j) where j is not after i, otherwise 0. [… n] → [… n n]"""
    return (logs[..., :, None] - logs[..., None, :]).tril().exp().tril()


def _in_chunks(x: Tensor) -> Tensor:
    """[b h n ·] → [b h t c ·], filled up with zeros."""
    chunk = min(CHUNK, x.shape[2])
    if missing := -x.shape[2] % chunk:
        x = F.pad(x, (0, 0, 0, missing))
    return x.unflatten(2, (-1, chunk))
