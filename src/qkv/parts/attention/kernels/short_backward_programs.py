"""Attention of short rows, learned: the way back of one head of one row in one program. [dao2022 alg.4]

All queries of a row lie in one program, and so does the sum of their gradient; keys and values come a few at a time,
and leave with theirs. So weights are made again once, five products in all, nothing is added up in memory, and the same
input gives the same gradient, bit for bit. The copy engine brings zeros for slots past an end, and stores none.

What biases of queries and values learn are sums over slots: of dq, and of do, because the weights of a query sum to 1.
That of keys adds the same to all scores of a query, which changes no weight: it learns nothing.

Shapes: M queries, N keys of a step, D width of keys and values (a power of two).
"""

from __future__ import annotations

import triton
import triton.language as tl

from qkv.parts.attention.kernels.flash_programs import log2_e


# Rows come in many lengths, and few of them are worth a variant of their own.
@triton.jit(do_not_specialize=["documents_row", "heads", "queries", "keys"])
def back_over_rows(
    log_sum, documents, kept, q, k, v, o, above, dq, dk, dv, documents_row, heads, queries, keys, scale,
    CAUSAL: tl.constexpr, PADDED: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """With P the weights and δ = Σ o·do: dv = Pᵀ do, dS = P ∘ (do vᵀ - δ), dq = dS k, dk = dSᵀ q.

    Kept are sums over slots, of each row those of queries, keys and values. [b 3 h D]
    """
    row, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    documents += row.to(tl.int64) * documents_row
    query = tl.arange(0, M)
    do = tile_of(above, row, head, 0, M, D)  # [M D]
    difference = tl.sum(do.to(tl.float32) * tile_of(o, row, head, 0, M, D).to(tl.float32), 1)
    sums = log_sum + tl.program_id(0).to(tl.int64) * queries
    level = tl.load(sums + query, mask=query < queries, other=float("inf"))  # 2^(s - ∞) is 0
    seen = tl.where((level < float("inf"))[:, None], do.to(tl.float32), 0.0)  # by queries that see something
    kept += (row.to(tl.int64) * 3 * heads + head) * D + tl.arange(0, D)
    tl.store(kept + heads * D, tl.zeros([D], tl.float32))
    tl.store(kept + 2 * heads * D, tl.sum(seen, 0))
    qs = tile_of(q, row, head, 0, M, D)  # [M D]
    gradient = tl.zeros([M, D], tl.float32)
    for start in tl.range(0, keys, N, num_stages=STAGES):
        key = start + tl.arange(0, N)
        ks = tile_of(k, row, head, start, N, D)  # [N D]
        vs = tile_of(v, row, head, start, N, D)  # [N D]
        p = tl.exp2(tl.dot(qs, tl.trans(ks)) * (scale * log2_e()) - level[:, None])  # [M N]
        shown = key < keys
        if PADDED:
            shown = tl.load(documents + key, mask=shown, other=0) > 0
        p = tl.where(shown[None, :], p, 0.0)
        if CAUSAL:
            p = tl.where(key[None, :] <= query[:, None], p, 0.0)
        store_tile(dv, row, head, start, tl.dot(tl.trans(p.to(do.dtype)), do), N, D)
        dp = tl.dot(do, tl.trans(vs))  # [M N]
        ds = (p * (dp - difference[:, None])).to(qs.dtype)
        gradient = tl.dot(ds, ks, gradient)
        store_tile(dk, row, head, start, tl.dot(tl.trans(ds), qs) * scale, N, D)
    gradient *= scale
    store_tile(dq, row, head, 0, gradient, M, D)
    tl.store(kept, tl.sum(gradient, 0))


@triton.jit
def tile_of(of, row, head, start, N: tl.constexpr, D: tl.constexpr):
    return of.load([row, head, start, 0]).reshape(N, D)


@triton.jit
def store_tile(to, row, head, start, found, N: tl.constexpr, D: tl.constexpr):
    to.store([row, head, start, 0], found.to(to.dtype).reshape(1, 1, N, D))
