"""Fused attention as torch would compute it on a device: which kernel, and what it makes and keeps.

Shapes: b rows, h query heads, g key/value heads, q queries, k keys, d width of a key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

CUDNN_PREFERRED = ("cudnn", "flash", "efficient", "math")  # what torch tries on a Hopper or newer
_NAMES = {
    SDPBackend.CUDNN_ATTENTION: "cudnn",
    SDPBackend.FLASH_ATTENTION: "flash",
    SDPBackend.EFFICIENT_ATTENTION: "efficient",
    SDPBackend.MATH: "math",
}
WIDEST = {"cudnn": 128, "flash": 256, "efficient": 1 << 16}  # of a head
_NARROW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class AttentionCall:
    """The arguments of `F.scaled_dot_product_attention`."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    dropout: float
    causal: bool
    scale: float | None
    grouped: bool

    @staticmethod
    def of(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> AttentionCall:
        return AttentionCall(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def preferred() -> tuple[str, ...]:
    """The kernels of this machine's torch in the order in which it tries them."""
    if not hasattr(torch._C, "_get_sdp_priority_order"):
        return CUDNN_PREFERRED
    order = [SDPBackend(number) for number in torch._C._get_sdp_priority_order()]
    return tuple(_NAMES[backend] for backend in order if backend in _NAMES)


def attend(call: AttentionCall, place: torch.device, order: tuple[str, ...], cast: Callable[[Any], Any]) -> Tensor:
    """The call by the first kernel of `order` that takes it."""
    q, k, v, mask = cast((call.q, call.k, call.v, call.mask))
    causal, dropout, scale, grouped = call.causal, call.dropout, call.scale, call.grouped
    if place.type == "cpu":
        given = q, k, v, dropout, causal
        made: Tensor
        if dropout == 0 and (mask is None or not mask.requires_grad):
            mask = _added(mask, q)
            made = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*given, attn_mask=mask, scale=scale)[0]
            return made
        return _by_products(q, k, v, mask, dropout, causal, scale, grouped)
    kept = any(x.requires_grad for x in (q, k, v)) and torch.is_grad_enabled()
    for name in order:
        if not _takes(name, q, v, mask, grouped):
            continue
        if name == "flash":
            return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout, causal, False, scale=scale)[0]
        if name == "math":
            break
        bias = None if mask is None else _added(mask, q).expand(*q.shape[:3], k.shape[2])  # type: ignore[union-attr]
        if name == "cudnn":
            return torch.ops.aten._scaled_dot_product_cudnn_attention(
                q, k, v, bias, kept, dropout, causal, False, scale=scale
            )[0]
        return torch.ops.aten._scaled_dot_product_efficient_attention(
            q, k, v, bias, kept, dropout, causal, scale=scale
        )[0]
    return _by_products(q, k, v, mask, dropout, causal, scale, grouped)


def _takes(name: str, q: Tensor, v: Tensor, mask: Tensor | None, grouped: bool) -> bool:
    if name == "math":
        return True
    if q.shape[-1] > WIDEST[name] or (q.shape[-1] != v.shape[-1] and name == "flash"):
        return False
    if name == "cudnn":
        enabled = q.shape[2] > 1 and q.shape[-1] % 8 == 0 and torch.backends.cuda.cudnn_sdp_enabled()
        return enabled and q.dtype in _NARROW
    if name == "flash":
        return q.dtype in _NARROW and mask is None
    return not grouped


def _added(mask: Tensor | None, q: Tensor) -> Tensor | None:
    """A table of booleans as what is added to scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask.logical_not(), -torch.inf)


def _for_each_head(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    times = q.shape[1] // k.shape[1]
    return k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)


def _by_products(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, scale: float | None,
    grouped: bool,
) -> Tensor:  # fmt: skip
    """With the table of weights formed."""
    if grouped:
        k, v = _for_each_head(q, k, v)
    root = (q.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
    if causal:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device="meta").tril()
    s = (q * root) @ (k * root).transpose(-1, -2)  # [b h q k]
    bias = _added(mask, q)
    p = torch.softmax(s if bias is None else s + bias, -1)
    return torch.dropout(p, dropout, dropout > 0) @ v
