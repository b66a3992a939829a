"""Attention of short rows on a CPU, by our own program, where nothing is learned.

It holds the scores of a few queries to all keys, where torch's kernel takes blocks of keys, reads queries, keys and
values where they lie, and writes heads side by side, so that nobody has to bring them together.

Shapes: b rows, h query heads, g key/value heads, q queries, k keys, d width of a head.
"""

from __future__ import annotations

from ctypes import Structure, byref, c_float, c_int, c_long, c_void_p

import torch
from torch import Tensor

from qkv.parts import cpu
from qkv.parts.programs import unwatched

MOST = 1024  # keys, whose head a core holds
MULTIPLE, WIDEST = 32, 256  # widths of heads
ENOUGH = 1 << 20  # scores; for fewer nobody waits until a program is compiled
KINDS = {torch.float32: 0, torch.bfloat16: 1}  # as they are numbered there
LEAST_AT_A_TIME = 8  # numbers in a register; with fewer torch is as quick


class PlaceNumbers(Structure):
    _fields_ = [("begin", c_void_p), ("row", c_long), ("head", c_long), ("slot", c_long)]


class RowNumbers(Structure):
    _fields_ = [
        ("q", PlaceNumbers),
        ("k", PlaceNumbers),
        ("v", PlaceNumbers),
        ("o", c_void_p),
        ("documents", c_void_p),
        ("rows", c_long),
        ("heads", c_long),
        ("groups", c_long),
        ("queries", c_long),
        ("keys", c_long),
        ("width", c_long),
        ("scale", c_float),
        ("causal", c_int),
        ("threads", c_int),
        ("kind", c_int),
    ]


def suits(q: Tensor, k: Tensor) -> bool:
    """Whether the program takes these, and pays."""
    (b, h, queries, width), keys = q.shape, k.shape[2]
    sizes = width % MULTIPLE == 0 and width <= WIDEST and keys <= MOST and b * h * queries * keys >= ENOUGH
    plain = q.device.type == "cpu" and q.dtype == k.dtype and q.dtype in KINDS
    answers = not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu") and unwatched(q)
    if not (sizes and plain and answers):
        return False
    library = cpu.library()
    return library is not None and library.qkv_numbers_at_a_time() >= LEAST_AT_A_TIME


def attend_rows(
    q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, *, causal: bool, scale: float | None
) -> Tensor:
    """What suits. [b h q d] [b g k d] [b g k d] → [b h q d]; keys of document 0 [b k] are hidden."""
    library = cpu.library()
    assert library is not None
    b, h, queries, d = q.shape
    q, k, v = (each if each.stride(3) == 1 else each.contiguous() for each in (q, k, v))
    o = q.new_empty(b, queries, h, d)
    documents = None if documents is None else documents.expand(b, -1).long().contiguous()
    places = (PlaceNumbers(each.data_ptr(), *each.stride()[:3]) for each in (q, k, v))
    numbers = RowNumbers(
        *places, o.data_ptr(), None if documents is None else documents.data_ptr(), b, h, k.shape[1], queries,
        k.shape[2], d, d**-0.5 if scale is None else scale, causal, torch.get_num_threads(), KINDS[q.dtype],
    )  # fmt: skip
    library.qkv_whole_rows(byref(numbers))
    return o.transpose(1, 2)
