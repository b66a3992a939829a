"""What `cpu_steps.cpp` is told, and the maps that it reads: matrices in panels of 32 outputs.

Shapes: o outputs, i inputs of a map, p panels, c cells of 32 bits in a row.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from ctypes import Structure, addressof, byref, c_char_p, c_float, c_int, c_long, c_void_p
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.parts import cpu, large_pages

PANEL = 32
MULTIPLE = 16  # widths are multiples of this
KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}  # as they are numbered there; so are activations
ACTIVATIONS = {"": 0, "gelu": 1, "gelu_tanh": 2, "gelu_quick": 3, "silu": 4, "relu": 5}
FEED_FORWARD, ATTENDS, REMEMBERS, ATTENDS_ROWS = range(4)  # kinds of steps, likewise
MANY = 2**14  # numbers; with fewer, torch is as quick


class MapNumbers(Structure):
    _fields_ = [
        ("cells", c_void_p),
        ("plain", c_void_p),
        ("bias", c_void_p),
        ("scales", c_void_p),
        ("sums", c_void_p),
        ("inputs", c_long),
        ("outputs", c_long),
        ("kind", c_int),
    ]


class NormNumbers(Structure):
    _fields_ = [("gain", c_void_p), ("shift", c_void_p), ("epsilon", c_float), ("rms", c_int)]


class StreamNumbers(Structure):
    _fields_ = [("x", c_void_p), ("y", c_void_p), ("rows", c_long), ("kind", c_int), ("threads", c_int)]


class HeadNumbers(Structure):
    _fields_ = [
        ("heads", c_long),
        ("groups", c_long),
        ("key_width", c_long),
        ("value_width", c_long),
        ("scale", c_float),
    ]


class KeptNumbers(Structure):
    _fields_ = [
        ("keys", c_void_p),
        ("values", c_void_p),
        ("capacity", c_long),
        ("slots", c_long),
        ("documents", c_void_p),
    ]


class MomentNumbers(Structure):
    """Where new tokens stand: the same for all steps of a stack, and another for each token."""

    _fields_ = [
        ("slots", c_long),
        ("documents", c_void_p),
        ("bias", c_void_p),
        ("bias_row", c_long),
        ("bias_head", c_long),
        ("positions", c_void_p),
    ]


class MapAlone(Structure):
    _fields_ = [
        ("stream", StreamNumbers),
        ("map", MapNumbers),
        ("scale", c_float),
        ("activation", c_int),
        ("added", c_void_p),
        ("after", NormNumbers),
        ("normed", c_void_p),
    ]


class FeedForwardNumbers(Structure):
    _fields_ = [
        ("stream", StreamNumbers),
        ("before", NormNumbers),
        ("after", NormNumbers),
        ("inner", MapNumbers),
        ("outer", MapNumbers),
        ("activation", c_int),
        ("gated", c_int),
    ]


class ProjectedNumbers(Structure):
    """What steps have in common whose first map makes queries, keys and values."""

    _fields_ = [
        ("stream", StreamNumbers),
        ("before", NormNumbers),
        ("after", NormNumbers),
        ("project", MapNumbers),
        ("out", MapNumbers),
    ]


class AttentionNumbers(ProjectedNumbers):
    _fields_ = [
        ("heads", HeadNumbers),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("partner", c_void_p),
        ("kept", KeptNumbers),
        ("now", MomentNumbers),
    ]


class MemoryNumbers(Structure):
    _fields_ = [
        ("stream", StreamNumbers),
        ("before", NormNumbers),
        ("after", NormNumbers),
        ("query", MapNumbers),
        ("out", MapNumbers),
        ("heads", HeadNumbers),
        ("kept", KeptNumbers),
        ("beams", c_long),
    ]


class StepsNumbers(Structure):
    _fields_ = [
        ("stream", StreamNumbers),
        ("now", MomentNumbers),
        ("many", c_long),
        ("kinds", c_void_p),
        ("steps", c_void_p),
    ]


class ChoiceNumbers(Structure):
    _fields_ = [
        ("logits", c_void_p),
        ("forbidden", c_void_p),
        ("best", c_void_p),
        ("tokens", c_void_p),
        ("rows", c_long),
        ("vocabulary", c_long),
        ("count", c_long),
        ("forbidden_many", c_long),
        ("threads", c_int),
    ]


class RoomNumbers(Structure):
    _fields_ = [("begin", c_void_p), ("groups", c_long), ("group", c_long), ("used", c_long)]


class OrderNumbers(Structure):
    _fields_ = [("rooms", c_void_p), ("many", c_long), ("rows", c_void_p), ("count", c_long), ("threads", c_int)]


class PackedMap:
    """x Wᵀ + b, with W in the order in which it is read."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, scales: Tensor | None = None, sums: Tensor | None = None
    ) -> None:
        """weight [o i]: in 8 bits with the scale of each output [o], and the sum of its weights [o]."""
        outputs, inputs = weight.shape
        self.outputs, self.kind = outputs, weight.dtype
        self.cells = _panels(weight.detach().contiguous())
        bias = torch.zeros(outputs) if bias is None else bias.detach().float()
        self.parts = [None if each is None else _filled(each) for each in (bias, scales, sums)]
        places = [None if each is None else each.data_ptr() for each in self.parts]
        self.numbers = MapNumbers(self.cells.data_ptr(), None, *places, inputs, outputs, KINDS[weight.dtype])

    def dequantised(self) -> Tensor:
        """The weights as they are computed with. [o i]"""
        words = self.cells.transpose(1, 2).reshape(-1, self.cells.shape[1])[: self.outputs]  # [o c]
        numbers = words.contiguous().view(self.kind).float()
        scales = self.parts[1]
        return numbers if scales is None else numbers * scales[: self.outputs, None]


class PlainMap:
    """The same of many rows, with W as it lies, for as long as nobody changes it."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.outputs, inputs = weight.shape
        added = torch.zeros(self.outputs) if bias is None else bias.detach()
        self.parts = [added if added.dtype == torch.float32 and self.outputs % PANEL == 0 else _filled(added), weight]
        places = weight.data_ptr(), self.parts[0].data_ptr()
        self.numbers = MapNumbers(None, *places, None, None, inputs, self.outputs, KINDS[weight.dtype])


def map_rows(map_: PackedMap | PlainMap, x: Tensor, scale: float = 1.0, activation: str = "") -> Tensor:
    """activation(map(scale · x)). [… i] → [… o]"""
    library = cpu.library()
    assert library is not None
    x = x.contiguous()
    y = _answers.like(x, (*x.shape[:-1], map_.outputs))
    step = MapAlone(stream(x, y), map_.numbers, scale, ACTIVATIONS[activation])
    library.qkv_map(byref(step))
    return y


class RowNorm(NamedTuple):
    """A norm of rows, as it is computed with."""

    gain: Tensor  # [d]
    shift: Tensor | None  # [d]
    epsilon: float
    rms: bool

    def numbers(self) -> NormNumbers:
        shift = None if self.shift is None else self.shift.data_ptr()
        return NormNumbers(self.gain.data_ptr(), shift, self.epsilon, self.rms)


def norm_numbers(norm: RowNorm | None) -> NormNumbers:
    return NormNumbers() if norm is None else norm.numbers()


def add_rows(
    map_: PackedMap | PlainMap, x: Tensor, added: Tensor, y: Tensor | None, norm: RowNorm | None, normed: Tensor | None
) -> None:
    """y = added + map(x), and its norm into `normed`; of y, added and normed any may be the same. [… i] [… o]"""
    library = cpu.library()
    assert library is not None
    x = x.contiguous()
    after, to = norm_numbers(norm), None if norm is None or normed is None else normed.data_ptr()
    given = stream(x, x)
    given.y = None if y is None else y.data_ptr()
    library.qkv_map(byref(MapAlone(given, map_.numbers, 1.0, 0, added.data_ptr(), after, to)))


class Norms(NamedTuple):
    """Of a residual step: after(x + mixer(before(x)))."""

    before: RowNorm | None
    after: RowNorm | None

    def numbers(self) -> tuple[NormNumbers, NormNumbers]:
        return norm_numbers(self.before), norm_numbers(self.after)


class OneStep(NamedTuple):
    """A residual step as the program is told of it, but for its stream and the moment."""

    kind: int
    numbers: Any
    held: tuple[object, ...] = ()  # what they point to


def feed_forward_step(norms: Norms, inner: PackedMap, outer: PackedMap, activation: str, *, gated: bool) -> OneStep:
    """The step whose mixer is a feed-forward of these maps."""
    maps = inner.numbers, outer.numbers
    numbers = FeedForwardNumbers(StreamNumbers(), *norms.numbers(), *maps, ACTIVATIONS[activation], gated)
    return OneStep(FEED_FORWARD, numbers, (norms, inner, outer))


class StepsInOrder:
    """Steps, one after the other, as the program is told of them: for any number of calls, one at a time."""

    def __init__(self, steps: Sequence[OneStep]) -> None:
        many = len(steps)
        self._kinds = (c_int * many)(*[step.kind for step in steps])
        self._places = (c_void_p * many)(*[addressof(step.numbers) for step in steps])
        self._held = steps
        self._told = StepsNumbers(many=many, kinds=addressof(self._kinds), steps=addressof(self._places))

    def do(self, x: Tensor, y: Tensor, now: MomentNumbers | None = None) -> None:
        """y becomes what they make of x, which y may be, in one call. [… d] [… d]"""
        library = cpu.library()
        assert library is not None
        self._told.stream = stream(x, y)
        if now is not None:
            self._told.now = now
        library.qkv_steps(byref(self._told))


def do_steps(steps: Sequence[OneStep], x: Tensor, y: Tensor) -> None:
    """The same once, of steps that do not ask for the moment."""
    StepsInOrder(steps).do(x, y)


class Answers:
    """Room for large tensors that come and go: what the system gives anew at each step, it has to empty first.

    A tensor holds the bytes it lies in, so that those which nobody else holds are free.
    """

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    def like(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Of the precision of x, with any numbers in it."""
        numbers = math.prod(shape)
        size = numbers * x.element_size()
        if size < LARGE:
            return x.new_empty(shape)
        looked_at, found = [], None
        while found is None and self._kept:
            bytes_ = self._kept.pop()  # so that nobody else takes it meanwhile
            if sys.getrefcount(bytes_) == ALONE and size <= len(bytes_) <= 2 * size:
                found = bytes_
            else:
                looked_at.append(bytes_)
        found = bytearray(size) if found is None else found
        y = torch.frombuffer(found, dtype=x.dtype, count=numbers).view(shape)
        self._kept = [*looked_at, found][-MOST_KEPT:]
        return y


ALONE = 2  # references: of whoever asks, and of the question
MOST_KEPT = 4
LARGE = 2**22  # bytes
_answers = Answers()


def instructions() -> str:
    """What the program was compiled for, as a person calls it."""
    library = cpu.library()
    assert library is not None
    library.qkv_instructions.restype = c_char_p
    named: bytes = library.qkv_instructions()
    return named.decode()


def fits(weight: Tensor, kind: torch.dtype) -> bool:
    """Whether a matrix [o i], in this precision, is better packed so."""
    return weight.shape[1] % MULTIPLE == 0 and most_rows(kind) > 0


def most_rows(kind: torch.dtype) -> int:
    """With more, or with any if this is 0, the libraries that torch has are as quick on this processor."""
    library = cpu.library() if kind in KINDS else None
    return 0 if library is None else int(library.qkv_most_rows(KINDS[kind]))


def takes_many(weight: Tensor) -> bool:
    """Whether many rows are mapped here more quickly than by other libraries, by a matrix [o i] that lies as it is."""
    if weight.dtype not in KINDS or weight.shape[1] % MULTIPLE:
        return False
    library = cpu.library()
    return library is not None and bool(library.qkv_takes_many(KINDS[weight.dtype]))


def stream(x: Tensor, y: Tensor) -> StreamNumbers:
    """From one to the other, [… d] each, in one piece."""
    rows = x.numel() // x.shape[-1]
    return StreamNumbers(x.data_ptr(), y.data_ptr(), rows, KINDS[x.dtype], torch.get_num_threads())


def can_choose(logits: Tensor) -> bool:
    """Whether `likeliest` takes these, and is quicker than torch."""
    plain = logits.device.type == "cpu" and logits.dtype == torch.float32 and logits.is_contiguous()
    return plain and logits.numel() >= MANY and cpu.library() is not None


def likeliest(logits: Tensor, count: int, forbidden: Tensor | None) -> tuple[Tensor, Tensor]:
    """The `count` likeliest tokens of each row, best first, with their log-probabilities. [r v] → [r c] [r c]

    `forbidden` are tokens of the vocabulary, in one piece.
    """
    library = cpu.library()
    assert library is not None
    rows, vocabulary = logits.shape
    best, tokens = logits.new_empty(rows, count), torch.empty(rows, count, dtype=torch.long)
    at, many = (None, 0) if forbidden is None else (forbidden.data_ptr(), len(forbidden))
    places = logits.data_ptr(), at, best.data_ptr(), tokens.data_ptr()
    library.qkv_choose(byref(ChoiceNumbers(*places, rows, vocabulary, count, many, torch.get_num_threads())))
    return best, tokens


def can_reorder(rooms: list[Tensor], rows: Tensor) -> bool:
    """Whether `reorder` takes these, and is quicker than torch."""
    plain = (
        rows.device.type == "cpu"
        and rows.dtype == torch.long
        and all(room.is_contiguous() and len(room) == len(rows) for room in rooms)
    )
    return plain and sum(room.numel() for room in rooms) >= MANY and cpu.library() is not None


def reorder(rooms: list[Tensor], rows: Tensor, used: int) -> None:
    """Row i of each room [r h c d] becomes what row `rows[i]` was, in place, as far as its slots are used."""
    library = cpu.library()
    assert library is not None
    numbers = (RoomNumbers * len(rooms))()
    for place, room in enumerate(rooms):
        slot = room.shape[3] * room.element_size()
        numbers[place] = RoomNumbers(room.data_ptr(), room.shape[1], slot * room.shape[2], slot * used)
    rows = rows.contiguous()
    order = OrderNumbers(addressof(numbers), len(rooms), rows.data_ptr(), len(rows), torch.get_num_threads())
    library.qkv_reorder(byref(order))


def copied(template: Any) -> Any:
    """Its numbers once more, to be changed."""
    return type(template).from_buffer_copy(template)


def _panels(weight: Tensor) -> Tensor:
    """[o i] → [p c PANEL], filled up with zeros."""
    library = cpu.library()
    assert library is not None
    outputs, inputs = weight.shape
    shape = -(-outputs // PANEL), inputs * weight.element_size() // 4, PANEL
    panels = large_pages.empty(shape, torch.int32)
    as_it_lies = MapNumbers(None, weight.data_ptr(), None, None, None, inputs, outputs, KINDS[weight.dtype])
    library.qkv_panels(byref(as_it_lies), c_void_p(panels.data_ptr()), torch.get_num_threads())
    return panels


def _filled(numbers: Tensor) -> Tensor:
    """[o], filled up to whole panels."""
    return F.pad(numbers.detach().float(), (0, -len(numbers) % PANEL)).contiguous()
