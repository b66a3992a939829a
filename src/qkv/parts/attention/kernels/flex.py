"""Block-sparse attention, by torch's FlexAttention: blocks of keys that no query sees cost nothing. [dong2024 §3]"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, lru_cache

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from qkv.errors import QkvError
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.refusals import refuse_dropout, refuse_recording
from qkv.parts.attention.visibility import Mask, Rule, Sight, Tokens


def flex(
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
    """Same meaning as `exact`, at a cost that follows the number of visible blocks."""
    refuse_recording("flex", record)
    refuse_dropout("flex", dropout)
    if not q.is_cuda and any(tensor is not None and tensor.requires_grad for tensor in (q, k, v, bias)):
        raise QkvError("The flex kernel has gradients on a GPU only: train with the exact or fused kernel here.")

    if mask is not None:
        mask.must_fit(q, k)
    if not k.shape[2]:  # there is no block to skip
        return exact(q, k, v, mask, bias, scale=scale)
    if bias is not None and bias.shape[2:] != (q.shape[2], k.shape[2]):
        bias = bias.expand(*bias.shape[:2], q.shape[2], k.shape[2])

    def add_bias(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        assert bias is not None
        return score + bias[row if bias.shape[0] > 1 else 0, head if bias.shape[1] > 1 else 0, query, key]

    blocks = None if mask is None or mask.flag == "all" else block_mask(mask)
    if torch.compiler.is_compiling():  # the graph around this call compiles it too
        attend: Callable[..., Tensor] = flex_attention
    else:
        attend = _compiled() if q.is_cuda else _plain
    return attend(
        q,
        k,
        v,
        score_mod=None if bias is None else add_bias,
        block_mask=blocks,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
        kernel_options=_SHORT_ROWS if _needs_the_long_kernel(q, k) else None,
    )


# For few queries torch takes a kernel that lays those of all heads that share a key in one block of at most this many
# rows, and finds no kernel at all where they do not fit.
_BLOCK = 128
_SHORT_ROWS = {"FORCE_USE_FLEX_ATTENTION": True}


def _needs_the_long_kernel(q: Tensor, k: Tensor) -> bool:
    queries = q.shape[2]
    return q.is_cuda and queries < _BLOCK < queries * (q.shape[1] // k.shape[1])


def block_mask(mask: Mask) -> BlockMask:
    """The rule as a block-sparse map. Maps that depend on no batch are kept, by the value of the rule."""
    query, key = mask.query, mask.key
    if query.rows is None and key.rows is None:
        make = _batchless_map if torch.compiler.is_compiling() else _kept_map
        return make(mask.rule, query.size, query.start, key.size, key.start, str(mask.device))

    def shown(side: Tokens, row: Tensor, slot: Tensor) -> Sight:
        document, marked = (None if each is None else each[row, slot] for each in (side.documents, side.marks))
        return Sight(slot + side.start, document, marked)

    def visible(row: Tensor, head: Tensor, query_slot: Tensor, key_slot: Tensor) -> Tensor:
        return mask.rule.sees(shown(query, row, query_slot), shown(key, row, key_slot))

    def made() -> BlockMask:
        return create_block_mask(visible, query.rows or key.rows, None, query.size, key.size, device=str(mask.device))

    return mask.lowered("blocks", made)


@lru_cache(maxsize=64)
def _kept_map(rule: Rule, queries: int, query_start: int, keys: int, key_start: int, device: str) -> BlockMask:
    with torch.inference_mode(False):  # a map first made while decoding serves training later
        return _batchless_map(rule, queries, query_start, keys, key_start, device)


def _batchless_map(rule: Rule, queries: int, query_start: int, keys: int, key_start: int, device: str) -> BlockMask:
    def visible(row: Tensor, head: Tensor, query_slot: Tensor, key_slot: Tensor) -> Tensor:
        return rule.sees(Sight(query_slot + query_start, None), Sight(key_slot + key_start, None))

    return create_block_mask(visible, None, None, queries, keys, device=device)


@cache
def _compiled() -> Callable[..., Tensor]:
    """FlexAttention pays only when compiled; one compiled function serves every call."""
    return torch.compile(flex_attention, dynamic=False)


def _plain(*tensors: Tensor, **options: object) -> Tensor:
    """On a CPU the same code runs uncompiled: slow, dense and without gradients, but with the same meaning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*flex_attention called without torch.compile.*")
        return flex_attention(*tensors, **options)  # type: ignore[call-overload]
