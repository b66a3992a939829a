"""The product of two matrices in 8 bits, with scales of rows and columns or one for each.

Shapes: m rows, n columns of the product.
"""

from __future__ import annotations

import torch
from torch import Tensor


def type_on(device: torch.device) -> torch.dtype:
    """Of products by rows: a GPU gives no wider one."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def of_type(x: Tensor, kind: torch.dtype) -> Tensor:
    """As `x.to(kind)`, which names x anew even if it leaves it as it is.

    A function may not return what has two names: compiled by torch 2.11 it gets zeros for a gradient (pytorch/180642).
    """
    return x if x.dtype is kind else x.to(kind)


def product_into(into: Tensor, a: Tensor, b: Tensor, of_a: Tensor, of_b: Tensor) -> None:
    """As `product` with one scale each."""
    if into.is_cuda:
        torch._scaled_mm(a, b, scale_a=of_a, scale_b=of_b, out_dtype=into.dtype, out=into)
    else:
        into.copy_(product(a, b, of_a, of_b, torch.float32))


def product(
    a: Tensor, b: Tensor, of_a: Tensor, of_b: Tensor, kind: torch.dtype, bias: Tensor | None = None, quick: bool = False
) -> Tensor:
    """a by rows, b by columns, with scales [m 1] and [1 n], or one for all of a and one for all of b.

    `quick`: sums are kept in fewer bits, which an H200 does a tenth faster. Of some thousand numbers they are off by a
    thousandth, where rounding these has made thirty of it; sums over all rows of a batch are for exact ones.
    """
    if not a.is_cuda:  # no fast product there: the same numbers in wide ones
        wide = a.float() @ b.float() * (of_a * of_b)
        return of_type(wide if bias is None else wide + bias, kind)
    bias = None if bias is None else bias.to(kind)
    product: Tensor = torch._scaled_mm(
        a, b, scale_a=of_a, scale_b=of_b, bias=bias, out_dtype=kind, use_fast_accum=quick
    )
    return product
