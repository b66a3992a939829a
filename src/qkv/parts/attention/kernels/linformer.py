"""Linformer: keys and values are projected along the row, from n tokens to r of them. [wang2020 eq.7]

    softmax(q (E k)ᵀ / √d) (F v),   E, F [r n]

costs n·r in place of n². Attention tables are of low rank, nearly [wang2020 theorem 1]: their spectrum says how large r
has to be (`share_of_spectrum`).

Shapes: b rows, h query heads, g key/value heads, q queries, k keys, d width of a key, e of a value, r projected tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.attention.kernels.exact import exact
from qkv.parts.attention.kernels.fused import fused
from qkv.parts.attention.visibility import Mask
from qkv.parts.attention.whole_rows import looks_ahead, real_keys
from qkv.parts.spec import Depends


class RowProjection(nn.Module):
    """E: learned weights by which `longest` slots become `tokens` ones; one matrix for all heads, or one for each."""

    depends_on = Depends("weight")

    def __init__(self, longest: int, tokens: int, heads: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.randn(heads, tokens, longest) * tokens**-0.5
        )  # Johnson-Lindenstrauss: δ = 1/√r

    def forward(self, x: Tensor) -> Tensor:
        """[b g k d] → [b g r d], with as many slots of the matrix as there are keys."""
        slots = x.shape[2]
        if slots > self.weight.shape[2]:
            raise QkvError(f"A Linformer projection for {self.weight.shape[2]} tokens cannot take {slots}.")
        weight = self.weight[:, :, :slots].to(x.dtype)
        if len(weight) > 1:
            return weight @ x
        # One matrix for all heads: side by side, as the stream has them, they are one product that reads it once.
        together = weight[0] @ x.transpose(1, 2).flatten(2)  # [b r g·d]
        return together.unflatten(2, (x.shape[1], -1)).transpose(1, 2)

    def extra_repr(self) -> str:
        heads, tokens, longest = self.weight.shape
        return f"{longest} → {tokens} tokens" + (f", {heads} heads" if heads > 1 else "")


class LinformerKernel(nn.Module):
    """An attention kernel over projected keys and values.

    The paper's ways to share are ways to give projections: one with `heads=1` to share between heads; the same for
    `keys` and `values`; the same to every layer of a model. [wang2020 §4]
    """

    depends_on = Depends("keys", "values")

    def __init__(self, keys: RowProjection, values: RowProjection) -> None:
        super().__init__()
        self.keys, self.values = keys, values

    def forward(
        self,
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
        """q [b h q d], k [b g k d], v [b g k e] → [b h q e]. `record` gets the weights of the r projected tokens."""
        if bias is not None:
            raise QkvError(
                "A Linformer has no score for a single key to which a bias could be added: use another kernel."
            )
        if looks_ahead(mask):
            raise QkvError("Linformer mixes all keys of a row, so none can be hidden from a query: use another kernel.")
        real = real_keys(mask)
        if real is not None:  # padding adds nothing to a projected token
            k, v = k * real[:, None, :, None], v * real[:, None, :, None]
        k, v = self.keys(k), self.values(v)
        if record is not None:
            return exact(q, k, v, scale=scale, dropout=dropout, record=record)
        return fused(q, k, v, scale=scale, dropout=dropout)


def share_of_spectrum(weights: Tensor) -> Tensor:
    """How much of a table of attention weights its largest singular values make up together. [wang2020 figure 1]

    weights [… q k] → [… min(q, k)], from the first singular value's share up to 1.
    """
    values = torch.linalg.svdvals(weights.float())
    return F.normalize(values, p=1, dim=-1).cumsum(-1)
