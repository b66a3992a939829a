"""Attention of short rows on a CPU, by our own program, where nothing is learned.

It holds the scores of a few queries to all keys, where torch's kernel takes blocks of keys, reads queries, keys and
values where they lie, and writes heads side by side, so that nobody has to bring them together.

Shapes: b rows, h query heads, g key/value heads, q queries, k keys, d width of a head.
"""

from __future__ import annotations

from ctypes import Structure, byref, c_float, c_int, c_long, c_void_p
from typing import Any, ClassVar

import torch
from torch import Tensor

from qkv.parts import cpu
from qkv.parts.attention.in_line import InLine, seen_in_line
from qkv.parts.attention.kernels.learned import padding_of
from qkv.parts.attention.visibility import Mask
from qkv.parts.cpu_steps import ATTENDS_ROWS, Norms, OneStep, PackedMap, ProjectedNumbers, StreamNumbers
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
        ("bounds", c_void_p),
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


class StepNumbers(ProjectedNumbers):
    _fields_: ClassVar[list[Any]] = [("rows", RowNumbers)]


def is_known(mask: Mask | None) -> bool:
    """Whether a mask over whole rows hides nothing but padding or the future."""
    return mask is None or mask.flag is not None or padding_of(mask) is not None


def suits(q: Tensor, k: Tensor, scores: int | None = None) -> bool:
    """Whether the program takes these, and pays; there are so many scores, if not all queries see all keys."""
    (b, h, queries, width), keys = q.shape, k.shape[2]
    enough = (b * h * queries * keys if scores is None else h * scores) >= ENOUGH
    sizes = width % MULTIPLE == 0 and width <= WIDEST and enough
    plain = q.device.type == "cpu" and q.dtype == k.dtype and q.dtype in KINDS
    answers = not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu") and unwatched(q)
    if not (sizes and plain and answers and (scores is not None or keys <= MOST)):
        return False
    library = cpu.library()
    return library is not None and library.qkv_numbers_at_a_time() >= LEAST_AT_A_TIME


def suits_in_line(q: Tensor, k: Tensor, v: Tensor, line: InLine) -> bool:
    """The same of documents that stand in line."""
    alike = v.dtype == k.dtype and v.shape == k.shape
    return alike and line.end <= MOST and suits(q, k, sum(length**2 for length in line.lengths))


def attend_rows(
    q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, *, causal: bool, scale: float | None
) -> Tensor:
    """What suits. [b h q d] [b g k d] [b g k d] → [b h q d]; keys of document 0 [b k] are hidden."""
    b, _, queries, _ = q.shape
    documents = None if documents is None else documents.expand(b, -1).long().contiguous()
    return _attend(q, k, v, documents, None, (b, queries, k.shape[2]), causal=causal, scale=scale)


def attend_in_line(q: Tensor, k: Tensor, v: Tensor, line: InLine, *, causal: bool, scale: float | None) -> Tensor:
    """What suits in line. [1 h s d] [1 g s d] [1 g s d] → [1 h s d]"""
    sizes = len(line.lengths), line.end, line.end
    return _attend(q, k, v, None, line.bounds, sizes, causal=causal, scale=scale)


def suits_stream(x: Tensor, width: int, mask: Mask) -> bool:
    """Whether all of an attention to rows x [b s d], whose heads are so wide, may be one call."""
    line = mask.query if seen_in_line(mask) else None
    longest = line.end if isinstance(line, InLine) else x.shape[1]
    sizes = width % MULTIPLE == 0 and width <= WIDEST and 0 < longest <= MOST and len(x) > 0
    return sizes and (line is not None or is_known(mask))


def attention_step(
    x: Tensor, norms: Norms, project: PackedMap, out: PackedMap, heads: tuple[int, int, int], scale: float, mask: Mask
) -> OneStep:
    """The step whose mixer is an attention by maps of one precision, of a stream x [b s d] that suits.

    heads: of queries; of keys and values; the width of each. Between maps in bfloat16 or in 8 bits, queries, keys,
    values and weights are in bfloat16: what makes them, and what reads the answer, rounds as much, or much more.
    """
    query_heads, groups, width = heads
    documents = bounds = None
    rows, longest, seen = len(x), x.shape[1], seen_in_line(mask)
    if seen:
        assert isinstance(mask.query, InLine)
        rows, longest, bounds = len(mask.query.lengths), mask.query.end, mask.query.bounds
    elif (padding := padding_of(mask)) is not None:
        documents = padding.expand(rows, -1).long().contiguous()
    hidden = (None if each is None else each.data_ptr() for each in (documents, bounds))
    nowhere = PlaceNumbers()  # the program knows by itself where queries, keys and values are
    numbers = RowNumbers(
        nowhere, nowhere, nowhere, None, *hidden, rows, query_heads, groups, longest, longest, width, scale,
        "causal" in (seen, mask.flag), torch.get_num_threads(), KINDS[torch.bfloat16],
    )  # fmt: skip
    step = StepNumbers(StreamNumbers(), *norms.numbers(), project.numbers, out.numbers, numbers)
    return OneStep(ATTENDS_ROWS, step, (norms, project, out, documents, bounds))


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    documents: Tensor | None,
    bounds: Tensor | None,
    sizes: tuple[int, int, int],
    *,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """`sizes`: rows, and the most queries and keys of one."""
    library = cpu.library()
    assert library is not None
    b, h, queries, d = q.shape
    q, k, v = (each if each.stride(3) == 1 else each.contiguous() for each in (q, k, v))
    o = q.new_empty(b, queries, h, d)
    places = (PlaceNumbers(each.data_ptr(), *each.stride()[:3]) for each in (q, k, v))
    hidden = (None if each is None else each.data_ptr() for each in (documents, bounds))
    rows, most_queries, most_keys = sizes
    numbers = RowNumbers(
        *places, o.data_ptr(), *hidden, rows, h, k.shape[1], most_queries, most_keys, d,
        d**-0.5 if scale is None else scale, causal, torch.get_num_threads(), KINDS[q.dtype],
    )  # fmt: skip
    library.qkv_whole_rows(byref(numbers))
    return o.transpose(1, 2)
