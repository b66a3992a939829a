"""Maps whose matrices are in panels, for whoever asks for the same weights again and again: made once and kept.

Panels take as much memory as the weights they are made of. They are made anew once weights have changed, and go when
these do; whoever decodes and whoever reads have the same ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from qkv.parts.cpu_steps import PackedMap

LOOKED_AT = 32  # numbers of a weight that are compared to see whether it has changed


class Kept(NamedTuple):
    signs: tuple[object, ...]
    bias: Tensor | None
    map: PackedMap


_kept = WeakIdKeyDictionary()


def kept_map(weight: Tensor, bias: Tensor | None) -> PackedMap:
    """x Wᵀ + b with W in panels: those from the last time, where neither W nor b has changed."""
    signs = signs_of_change(weight)
    known: Kept | None = _kept.get(weight)
    if known is None or known.signs != signs or not _equal(known.bias, bias):
        bias = None if bias is None else bias.detach().clone()
        _kept[weight] = known = Kept(signs, bias, PackedMap(weight, bias))
    return known.map


def signs_of_change(weight: Tensor) -> tuple[object, ...]:
    """What differs once a weight has been moved, replaced or written to.

    torch counts writes, but not those of a fused optimizer, nor those through `.data`, nor any to what was made where
    only answers are asked for; so some of the numbers are looked at as well.
    """
    written = None if weight.is_inference() else weight._version
    looked_at = weight.detach().flatten()[:: weight.numel() // LOOKED_AT + 1].tolist()
    return weight.data_ptr(), weight.dtype, weight.shape, written, looked_at


def _equal(bias: Tensor | None, other: Tensor | None) -> bool:
    if bias is None or other is None:
        return bias is other
    return bias.dtype == other.dtype and torch.equal(bias, other)
