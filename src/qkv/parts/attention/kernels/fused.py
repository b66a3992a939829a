"""Attention in one call of torch's fused kernels (FlashAttention, cuDNN, memory-efficient, CPU). [dao2022 alg.1]"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from qkv.parts.attention.kernels.refusals import refuse_recording
from qkv.parts.attention.visibility import Mask
from qkv.parts.precision import without_autocast

# cuDNN is the fastest on long rows, but plans anew for every new shape, and short rows come in many shapes; nor has it
# a gradient for a bias.
LONG = 512
WITHOUT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def fused(
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
    """Same meaning as `exact`. The weights are never formed, so they cannot be recorded.

    A bias wider than the queries is honoured by computing all in its precision, which takes longer: give it in the
    precision of the queries where that is fine enough.
    """
    refuse_recording("fused", record)
    if mask is not None:
        mask.must_fit(q, k)
    flag = "all" if mask is None else mask.flag
    grouped = q.shape[1] != k.shape[1]
    if flag is not None and bias is None:
        with _backends(q):
            return F.scaled_dot_product_attention(
                q, k, v, dropout_p=dropout, is_causal=flag == "causal", scale=scale, enable_gqa=grouped
            )
    if flag == "all":
        table = bias
    else:
        assert mask is not None
        # As in `exact`, the output of empty rows is made zero below.
        table = mask.without_empty_rows if bias is None else mask.added_to(bias)
    given = v.dtype
    precision: AbstractContextManager[object] = nullcontext()
    if bias is not None:
        assert table is not None
        # torch wants one type for all. The wider one: rounded to bfloat16, far distances of a bias coincide.
        wide = torch.promote_types(q.dtype, bias.dtype)
        q, k, v, table = q.to(wide), k.to(wide), v.to(wide), table.to(wide)
        precision = without_autocast(q)  # which would narrow them again
    with _backends(q, bias), precision:
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=table, dropout_p=dropout, scale=scale, enable_gqa=grouped)
    o = o.to(given)
    return o if flag is not None or mask is None else o * mask.sees_something


def _backends(q: Tensor, bias: Tensor | None = None) -> AbstractContextManager[None]:
    """All that torch has for long rows, or all that start at once for short ones and learn a bias."""
    learned = bias is not None and bias.requires_grad
    return sdpa_kernel(WITHOUT_CUDNN) if q.is_cuda and (q.shape[2] < LONG or learned) else nullcontext()
