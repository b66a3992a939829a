"""Attention within documents that stand in line: no table, no padding, no tile that is half empty. [dao2022 alg.1]

Shapes: h query heads, g key/value heads, s slots of all documents, n documents of one length, d width of a key.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.parts.attention.in_line import InLine, seen_in_line
from qkv.parts.attention.kernels import short_cpu
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.kernels.refusals import refuse_dropout, refuse_recording
from qkv.parts.attention.visibility import Causal, Everything, Mask, Tokens
from qkv.parts.programs import is_served, runs_our_own
from qkv.parts.uncompiled import uncompiled

WIDEST = 256  # head that FlashAttention takes
SHORT_WIDEST = 128  # head that the programs for short documents take
SHORT = 512  # tokens of the longest document up to which they are faster, since FlashAttention takes 128 at a time
ENOUGH = 1 << 13  # tokens from which on a GPU takes longer than the host that launches a program


@uncompiled  # lengths are values of Python, and would each be compiled for
def in_line(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    record: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Same meaning as `exact`. On a GPU in half precision all documents are read in one call, by FlashAttention or,
    where they are short and nothing is learned, by programs of our own. So they are on a CPU.

    Elsewhere neighbours of one length are a batch of `fused`: few calls where documents are sorted by their length.
    """
    refuse_recording("in_line", record)
    refuse_dropout("in_line", dropout)
    seen = seen_in_line(mask)
    if mask is None or seen is None or bias is not None:
        raise QkvError("The kernel in_line is for documents in one row, without a bias: use another kernel.")
    mask.must_fit(q, k)
    assert isinstance(mask.query, InLine)
    if is_served(q) and q.dtype in (torch.float16, torch.bfloat16) and _fits(q, v):
        if _are_short(q, mask.query):
            return _by_programs(q, k, v, mask.query, seen == "causal", scale)
        return _by_flash_attention(q, k, v, mask.query, seen == "causal", scale)
    if short_cpu.suits_in_line(q, k, v, mask.query):
        return short_cpu.attend_in_line(q, k, v, mask.query, causal=seen == "causal", scale=scale)
    return _by_runs(q, k, v, mask.query, seen == "causal", scale)


def _fits(q: Tensor, v: Tensor) -> bool:
    return q.shape[-1] == v.shape[-1] <= WIDEST and q.shape[-1] % 8 == 0


def _are_short(q: Tensor, line: InLine) -> bool:
    small = q.shape[-1] <= SHORT_WIDEST and line.end <= SHORT
    return small and line.size >= ENOUGH and not torch.is_grad_enabled() and runs_our_own(q)


def _by_programs(q: Tensor, k: Tensor, v: Tensor, line: InLine, causal: bool, scale: float | None) -> Tensor:
    from qkv.parts.attention.kernels import short_triton  # Triton comes with torch's builds for GPUs only

    assert line.documents is not None
    assert line.bounds is not None
    return short_triton.attend_in_line(q, k, v, line.documents, line.bounds, causal=causal, scale=scale)


def _by_flash_attention(q: Tensor, k: Tensor, v: Tensor, line: InLine, causal: bool, scale: float | None) -> Tensor:
    """The operator itself: torch's `varlen_attn` around it costs more than a short batch takes."""
    longest = line.end
    given = [x[0].transpose(0, 1) for x in (q, k, v)]  # [s h d] [s g d] [s g d]
    o: Tensor = torch.ops.aten._flash_attention_forward(
        *given, line.bounds, line.bounds, longest, longest, 0.0, causal, False, scale=scale
    )[0]
    return o.transpose(0, 1)[None]


def _by_runs(q: Tensor, k: Tensor, v: Tensor, line: InLine, causal: bool, scale: float | None) -> Tensor:
    """A batch for each run of documents of one length: views of the row, so nothing is copied to make them."""
    found = []
    for first, count, length in line.runs:
        tokens = Tokens(length)
        mask = Mask(Causal() if causal else Everything(), tokens, tokens, q.device)
        last = first + count * length
        queries, keys, values = (
            x[0, :, first:last].unflatten(1, (count, length)).transpose(0, 1) for x in (q, k, v)
        )  # [n h length d] [n g length d] [n g length d]
        o = fused(queries, keys, values, mask, scale=scale)  # [n h length d]
        found.append(o.transpose(1, 2).flatten(0, 1))  # [n·length h d]
    return torch.cat(found).transpose(0, 1)[None]
