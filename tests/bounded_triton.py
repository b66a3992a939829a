"""Programs in Triton's language run with bounds in place of numbers: which of their offsets pass 32 bits?

A launcher is called with tensors that have a shape and no memory (`device="meta"`), as large as one likes. Each program
is then an ordinary function of Python, whose numbers are intervals: a whole number that a program computes in 32 bits
and that may lie outside of them is told of where it is used, be it as an offset, to be compared, or to be made wider.

It takes each branch once and goes through loops that are not unrolled once, with all numbers of the loop at a time. So
what grows from turn to turn, other than the loop's own number, is not followed.
"""

from __future__ import annotations

import builtins
import inspect
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import qkv

LIMIT = 2**31
OURS = ("_programs", "_triton", "_cuda")
Shape = tuple[int, ...]


class Report:
    """What programs were met, what they may get wrong, and how far their offsets of 32 bits go."""

    def __init__(self) -> None:
        self.met: set[str] = set()
        self.wrong: list[str] = []
        self.largest: dict[str, int] = {}
        self.values: dict[str, tuple[int, int]] = {}  # of what is loaded, by the parameter's name
        self.usual = (-1, 2**16)
        self.polarity = True
        self.turns: dict[tuple[str, int], int] = {}  # of each condition

    def use(self, number: Int) -> None:
        place = _place()
        if number.bits == 32:
            self.largest[place] = max(self.largest.get(place, 0), number.high)
        if number.bits == 32 and number.high >= LIMIT:  # what is below 0 comes of bounds that know of no order
            self.wrong.append(f"{place}: up to {number.high:,}")


REPORT = Report()


def _place() -> str:
    frame: Any = sys._getframe(1)
    while not frame.f_code.co_filename.endswith("_programs.py"):
        frame = frame.f_back
    return f"{frame.f_globals['__name__'].rpartition('.')[2]}.{frame.f_code.co_name}, line {frame.f_lineno}"


class Kind(str):
    """Of numbers, or of what a pointer points to."""

    @property
    def element_ty(self) -> Kind:
        return self


class Other:
    """What is no whole number: of its kind, only its shape is known."""

    def __init__(self, shape: Shape = ()) -> None:
        self.shape = shape

    @property
    def dtype(self) -> Kind:
        return Kind("float")

    def to(self, kind: Any, bitcast: bool = False) -> Any:
        if kind in KINDS:  # bits of a number, or a number cut off
            return Int(0, 2**15, self.shape, KINDS[kind])
        return Other(self.shape)

    def reshape(self, *shape: Any) -> Any:
        return self._shaped(tuple(shape[0]) if isinstance(shape[0], list | tuple) else shape)

    def _shaped(self, shape: Shape) -> Any:
        return Other(shape)

    def __getitem__(self, index: Any) -> Any:
        index, sizes, shape = index if isinstance(index, tuple) else (index,), list(self.shape), []
        for each in index:
            shape.append(1 if each is None else sizes.pop(0))
        return self._shaped((*shape, *sizes))

    def _with(self, other: Any) -> Other:
        return Other(broadcast(self, other))

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _with
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __mod__ = __pow__ = __rshift__ = __lshift__ = _with
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _with  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    def __neg__(self) -> Other:
        return self

    __invert__ = __neg__

    def __bool__(self) -> bool:
        place = _place()
        at = (place, int(REPORT.polarity))
        REPORT.turns[at] = REPORT.turns.get(at, 0) + 1
        return REPORT.polarity and REPORT.turns[at] % 3 != 0  # a `while` ends


class Int(Other):
    """A whole number from `low` to `high`, or many of them."""

    def __init__(self, low: int, high: int, shape: Shape = (), bits: int = 32) -> None:
        super().__init__(shape)
        self.low, self.high, self.bits = low, high, bits

    def _shaped(self, shape: Shape) -> Any:
        return Int(self.low, self.high, shape, self.bits)

    def to(self, kind: Any, bitcast: bool = False) -> Any:
        if kind == "uint32":
            return Wrapping(self.shape)
        if kind not in KINDS:
            return Other(self.shape)
        if KINDS[kind] == 64:
            REPORT.use(self)
        return Int(self.low, self.high, self.shape, KINDS[kind])

    def _made(self, other: Any, by: Callable[[int, int], int]) -> Any:
        other = whole(other)
        if not isinstance(other, Int):
            return Other(broadcast(self, other))
        if self.bits != other.bits:  # the narrower one is made wide, too late if it is wrong already
            REPORT.use(min(self, other, key=lambda each: each.bits))
        ends = [by(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        return Int(min(ends), max(ends), broadcast(self, other), max(self.bits, other.bits))

    def __add__(self, other: Any) -> Any:
        return other + self if isinstance(other, Pointer) else self._made(other, lambda a, b: a + b)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._made(other, lambda a, b: a - b)

    def __rsub__(self, other: Any) -> Any:
        return self._made(other, lambda a, b: b - a)

    def __mul__(self, other: Any) -> Any:
        return self._made(other, lambda a, b: a * b)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return self._made(other, lambda a, b: a // max(b, 1))

    def __rfloordiv__(self, other: Any) -> Any:
        return self._made(other, lambda a, b: b // max(a, 1))

    def __mod__(self, other: Any) -> Any:
        other = whole(other)
        REPORT.use(self)
        return Int(
            0, max(0, min(other.high - 1, max(self.high, 0))), broadcast(self, other), max(self.bits, other.bits)
        )

    def __neg__(self) -> Int:
        return Int(-self.high, -self.low, self.shape, self.bits)

    def _bits(self, other: Any) -> Any:
        other = whole(other)
        if not isinstance(other, Int):
            return Other(broadcast(self, other))
        return Int(0, max(self.high, other.high, 0), broadcast(self, other), max(self.bits, other.bits))

    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _bits

    def _shifted(self, other: Any) -> Any:
        return Int(0, max(self.high, 0), broadcast(self, other), self.bits)

    __rshift__ = __lshift__ = _shifted

    def _compared(self, other: Any) -> Other:
        for each in (self, whole(other)):
            if isinstance(each, Int):
                REPORT.use(each)
        return Other(broadcast(self, other))

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _compared  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


class Wrapping(Other):
    """Bits that wrap around on purpose, such as those of a lot."""

    def _with(self, other: Any) -> Wrapping:
        return Wrapping(broadcast(self, other))

    __add__ = __radd__ = __mul__ = __rmul__ = __xor__ = __rxor__ = __rshift__ = __lshift__ = _with  # type: ignore[assignment]

    def _shaped(self, shape: Shape) -> Any:
        return Wrapping(shape)

    def to(self, kind: Any, bitcast: bool = False) -> Any:
        return Int(0, LIMIT - 1, self.shape)


class Pointer(Other):
    """Into a tensor."""

    def __init__(self, tensor: Tensor, name: str, shape: Shape = ()) -> None:
        super().__init__(shape)
        self.tensor, self.name = tensor, name

    @property
    def dtype(self) -> Kind:
        return Kind(str(self.tensor.dtype)[6:])

    def to(self, kind: Any, bitcast: bool = False) -> Pointer:
        return self

    def _shaped(self, shape: Shape) -> Any:
        return Pointer(self.tensor, self.name, shape)

    def __add__(self, other: Any) -> Pointer:
        other = whole(other)
        REPORT.use(other)
        return Pointer(self.tensor, self.name, broadcast(self, other))

    __radd__ = __sub__ = __add__  # type: ignore[assignment]

    def loaded(self) -> Any:
        kind = str(self.tensor.dtype)[6:]
        if kind not in KINDS:
            return Other(self.shape)
        low, high = (0, 1) if kind in ("int8", "uint8", "bool") else REPORT.values.get(self.name, REPORT.usual)
        return Int(low, high, self.shape, KINDS[kind])


class Descriptor(Other):
    """Of a tensor, for the copy engine."""

    def __init__(self, base: Tensor, shape: Any, strides: Any, block_shape: Any) -> None:
        self.base, self.block_shape = base, tuple(block_shape)
        super().__init__(self.block_shape)

    @property
    def dtype(self) -> Kind:
        return Kind(str(self.base.dtype)[6:])

    def load(self, corner: Any) -> Other:
        for each in corner:
            if isinstance(each, Int):
                REPORT.use(each)
        return Other(self.block_shape)

    def store(self, corner: Any, value: Any) -> None:
        self.load(corner)


KINDS = {"int8": 32, "uint8": 32, "int16": 32, "int32": 32, "int64": 64, "bool": 32}


def whole(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    return Int(value, value, (), 32 if -LIMIT <= value < LIMIT else 64)


def broadcast(*values: Any) -> Shape:
    shapes = [each.shape for each in values if isinstance(each, Other)]
    return tuple(torch.broadcast_shapes(*shapes))


class Language(ModuleType):
    """What `triton.language` offers, of bounds."""

    def __init__(self) -> None:
        super().__init__("triton.language")
        self.grid: tuple[int, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "PropagateNan":
            return SimpleNamespace(ALL=None)
        return name if name.startswith(("int", "uint", "float", "bfloat")) else _absorbed

    class constexpr:
        def __new__(cls, value: Any) -> Any:
            return value

    def program_id(self, axis: int) -> Int:
        return Int(0, self.grid[axis] - 1)

    def num_programs(self, axis: int) -> Int:
        return Int(self.grid[axis], self.grid[axis])

    def arange(self, start: int, end: int) -> Int:
        return Int(start, end - 1, (end - start,))

    def full(self, shape: Any, value: Any, kind: Any) -> Any:
        shape = tuple(shape)
        return Int(value, value, shape, KINDS[kind]) if kind in KINDS else Other(shape)

    def zeros(self, shape: Any, kind: Any) -> Any:
        return self.full(shape, 0, kind)

    def load(self, at: Any, **_: Any) -> Any:
        return at.loaded()

    def store(self, at: Any, value: Any, **_: Any) -> None:
        pass

    def atomic_add(self, at: Any, value: Any, **_: Any) -> Any:
        return at.loaded()

    atomic_max = atomic_add

    def pointer_type(self, kind: Any) -> Any:
        return "pointer"

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        a, b = whole(a), whole(b)
        if isinstance(a, Int) and isinstance(b, Int):
            bounds = min(a.low, b.low), max(a.high, b.high)
            return Int(*bounds, broadcast(condition, a, b), max(a.bits, b.bits))
        return Other(broadcast(condition, a, b))

    def minimum(self, a: Any, b: Any, **_: Any) -> Any:
        return whole(a)._made(b, min) if isinstance(whole(a), Int) else Other(broadcast(a, b))

    def maximum(self, a: Any, b: Any, **_: Any) -> Any:
        return whole(a)._made(b, max) if isinstance(whole(a), Int) else Other(broadcast(a, b))

    def cdiv(self, a: Any, b: Any) -> Any:
        return -(-a // b) if isinstance(a, int) and isinstance(b, int) else (whole(a) + b - 1) // b

    def range(self, start: Any, end: Any = None, step: Any = 1, num_stages: int = 1) -> Iterator[Int]:
        start, end = (whole(0), whole(start)) if end is None else (whole(start), whole(end))
        for each in (start, end):
            REPORT.use(each)
        yield Int(start.low, max(start.low, end.high - 1), (), max(start.bits, end.bits))

    static_range = staticmethod(builtins.range)

    def dot(self, a: Any, b: Any, *_: Any, **__: Any) -> Other:
        return Other((a.shape[0], b.shape[1]))

    def trans(self, x: Any) -> Any:
        return x._shaped(tuple(reversed(x.shape)))

    def reshape(self, x: Any, shape: Any) -> Any:
        return x.reshape(shape)

    def broadcast_to(self, x: Any, shape: Any) -> Any:
        return x._shaped(tuple(shape))

    def join(self, a: Any, b: Any) -> Any:
        return a._shaped((*broadcast(a, b), 2))

    def split(self, x: Any) -> Any:
        return x._shaped(x.shape[:-1]), x._shaped(x.shape[:-1])

    def sum(self, x: Any, axis: int | None = None) -> Any:
        shape, many = _reduced(x.shape, axis)
        if isinstance(x, Int):
            return Int(min(x.low * many, x.low), max(x.high * many, x.high), shape, x.bits)
        return Other(shape)

    def cumsum(self, x: Any, axis: int) -> Any:
        made = self.sum(x, axis)
        return Int(made.low, made.high, x.shape, made.bits) if isinstance(x, Int) else x

    def max(self, x: Any, axis: int | None = None, return_indices: bool = False) -> Any:
        shape, many = _reduced(x.shape, axis)
        made = Int(x.low, x.high, shape, x.bits) if isinstance(x, Int) else Other(shape)
        return (made, Int(0, many - 1, shape)) if return_indices else made

    min = max

    def argmax(self, x: Any, axis: int) -> Int:
        shape, many = _reduced(x.shape, axis)
        return Int(0, many - 1, shape)

    def reduce(self, x: Any, axis: int, combine: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(Other(_reduced(each.shape, axis)[0]) for each in x)
        return Other(_reduced(x.shape, axis)[0])

    def associative_scan(self, x: Any, axis: int, combine: Any) -> Any:
        return x


def _reduced(shape: Shape, axis: int | None) -> tuple[Shape, int]:
    if axis is None:
        return (), math.prod(shape)
    return shape[:axis] + shape[axis + 1 :], shape[axis]


def _absorbed(*given: Any, **_: Any) -> Any:
    return Other(broadcast(*[each for each in given if isinstance(each, Other)]))


class Program:
    """A function that is launched, or called by another."""

    def __init__(self, function: Any, language: Language) -> None:
        self.function, self.language = function, language
        self.name = f"{function.__module__}.{function.__name__}"
        self.arg_names = list(inspect.signature(function).parameters)

    def __call__(self, *given: Any, **named: Any) -> Any:
        REPORT.met.add(self.name)
        return self.function(*given, **named)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*given: Any, **named: Any) -> None:
            bound = inspect.signature(self.function).bind(
                *given, **{name: value for name, value in named.items() if name in self.arg_names}
            )
            arguments = {name: _argument(value, name, name in named) for name, value in bound.arguments.items()}
            self.language.grid = (*grid, 1, 1)[:3]
            for REPORT.polarity in (True, False):
                self(**arguments)

        return run


def _argument(value: Any, name: str, constant: bool) -> Any:
    if isinstance(value, Tensor):
        return Pointer(value, name)
    return value if constant or isinstance(value, bool) else whole(value)


@contextmanager
def bounded_programs() -> Iterator[Report]:
    """Inside, files of programs and those that launch them are read anew, for bounds."""
    language = Language()
    triton: Any = ModuleType("triton")
    triton.language, triton.cdiv = language, lambda a, b: -(-a // b)
    triton.next_power_of_2 = lambda n: 1 << max(0, n - 1).bit_length()
    triton.jit = lambda function=None, **_: triton.jit if function is None else Program(function, language)
    extra, descriptor = ModuleType("triton.language.extra.cuda"), ModuleType("triton.tools.tensor_descriptor")
    extra.gdc_wait = extra.gdc_launch_dependents = lambda: None  # type: ignore[attr-defined]
    descriptor.TensorDescriptor = Descriptor  # type: ignore[attr-defined]
    pretended = {each.__name__: each for each in (triton, language, extra, descriptor)}
    ours = [name for name in sys.modules if name.startswith("qkv.") and name.endswith(OURS)]
    kept = {name: sys.modules.pop(name) for name in [*ours, *[name for name in pretended if name in sys.modules]]}
    sys.modules |= pretended
    global REPORT
    REPORT = Report()
    try:
        for name in program_files():
            module: Any = import_module(name)
            module.range = language.range
        yield REPORT
    finally:
        for name in [name for name in sys.modules if name.startswith("qkv.") and name.endswith(OURS)]:
            package, _, own = name.rpartition(".")
            del sys.modules[name]
            vars(sys.modules[package]).pop(own, None)
        for name in pretended:
            del sys.modules[name]
        sys.modules |= kept
        for name, module in kept.items():
            package, _, own = name.rpartition(".")
            if package in sys.modules:
                setattr(sys.modules[package], own, module)


def program_files() -> list[str]:
    root = Path(qkv.__file__).parent
    files = sorted(root.rglob("*_programs.py"))
    return [".".join(["qkv", *file.relative_to(root).with_suffix("").parts]) for file in files]
