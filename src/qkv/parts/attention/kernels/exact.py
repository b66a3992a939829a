"""The specification: scaled dot-product attention, written as its equation reads.

Every other kernel must give what this one gives, outputs and gradients.

Shapes: b rows, h query heads, g key/value heads (h a multiple of g), q queries, k keys, d width of a key, e of a value.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.parts.attention.visibility import Mask
from qkv.parts.precision import widened


def exact(
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
    """softmax(q kᵀ · scale + bias) v over the keys each query may see [vaswani2017 eq.1].

    q [b h q d], k [b g k d], v [b g k e] → [b h q e]. The scale is 1/√d unless given.
    A query that sees no key gets zeros. `record` is handed the weights [b h q k] before dropout.
    """
    if mask is not None:
        mask.must_fit(q, k)
    shared_by = q.shape[1] // k.shape[1]  # query heads that share a key/value head [ainslie2023 §2.2]
    k, v = k.repeat_interleave(shared_by, 1), v.repeat_interleave(shared_by, 1)  # [b h k d] [b h k e]
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)  # [b h q k]
    if bias is not None:
        scores = scores + bias
    scores = widened(scores)  # bfloat16 is too coarse for a softmax
    if mask is None:
        weights = torch.softmax(scores, -1)
    else:
        hidden = ~mask.without_empty_rows  # a row without a visible key has no softmax: its weights are made zero
        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1) * mask.sees_something
    weights = weights.to(v.dtype)
    if record is not None:
        record(weights)
    return F.dropout(weights, dropout) @ v  # [b h q e]
