"""Programs in Triton's language, noted in place of being run: what launches them allocates as it always does.

On a machine without Triton, and on one with it, the files that launch programs are read anew with a Triton that only
notes, and forgotten afterwards.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from qkv import parts
from qkv.parts.attention import kernels
from qkv.train import objectives
from qkv.train.cost.operators import TYPES, AttentionShape, Work, as_tuple

Note = Callable[[Work], None]
_FOLDERS = (parts, kernels, objectives)
_FILES = ("_programs", "_triton")
_DEEPER = ("triton.language.extra.cuda", "triton.tools.tensor_descriptor")  # of Triton, that these files name


@contextmanager
def programs_noted(note: Note) -> Iterator[None]:
    """Inside, programs are noted."""
    ours = {name: module for name, module in sys.modules.items() if _launches(name)}
    _forget()
    try:
        with _pretended_triton(note):
            for folder in _FOLDERS:
                for file in sorted(Path(folder.__path__[0]).glob("*_triton.py")):
                    import_module(f"{folder.__name__}.{file.stem}")
        yield
    finally:
        _forget()
        sys.modules.update(ours)
        for name, module in ours.items():
            package, _, own = name.rpartition(".")
            setattr(sys.modules[package], own, module)


@contextmanager
def _pretended_triton(note: Note) -> Iterator[None]:
    """For as long as our own files are read: torch must not find it."""
    triton = _Triton(note)
    pretended = {"triton": triton, "triton.language": triton.language}
    pretended |= {name: _Anything(name) for name in _DEEPER}
    before = {name: sys.modules.get(name) for name in pretended}
    sys.modules |= pretended
    try:
        yield
    finally:
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


def _forget() -> None:
    for name in [name for name in sys.modules if _launches(name)]:
        del sys.modules[name]
        package, _, own = name.rpartition(".")
        vars(sys.modules[package]).pop(own, None)


def _launches(name: str) -> bool:
    return name.startswith(tuple(f"{folder.__name__}." for folder in _FOLDERS)) and name.endswith(_FILES)


class _Anything(ModuleType):
    """Whatever a program's text asks of the language when it is read."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return given[0] if given and callable(given[0]) else self


class _Triton(_Anything):
    def __init__(self, note: Note) -> None:
        super().__init__("triton")
        self.language = _Anything("triton.language")
        self.note = note

    def jit(self, function: Any = None, **_: Any) -> Any:
        return _Program(function, self.note) if function is not None else self.jit

    @staticmethod
    def cdiv(a: int, b: int) -> int:
        return -(-a // b)

    @staticmethod
    def next_power_of_2(n: int) -> int:
        return 1 << max(0, n - 1).bit_length()


class _Program:
    """A program, by its grid: `program[grid](…)`."""

    def __init__(self, function: Any, note: Note) -> None:
        self.name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        self.note = note

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*given: Any, **constants: Any) -> None:
            self.note(_work(self.name, math.prod(grid), given, constants))

        return launch


def _work(name: str, programs: int, given: tuple[Any, ...], constants: dict[str, Any]) -> Work:
    tensors = [value for value in given if isinstance(value, Tensor)]
    moved = sum({id(tensor): tensor.numel() * tensor.element_size() for tensor in tensors}.values())
    first = tensors[0]
    held = name == "entropy_programs.entropy_of_held_rows"
    if held or (name == "entropy_programs.entropy_of_rows" and constants["SLOPED"] and tensors[1] is first):
        moved += first.numel() * first.element_size()  # read, and overwritten
    if name in ("lsh_programs.forward", "lsh_programs.backward"):
        back = name.endswith("backward")
        chunk, seen = constants["C"], constants["C"] * (1 + constants["BEFORE"] + constants["AFTER"])
        flops = programs * chunk * seen * 2 * (constants["D"] + constants["E"]) * (5 if back else 2) // 2
        shape = AttentionShape(
            "chunks", TYPES.get(first.dtype, "float32"), back, True, False, False, programs, chunk, seen, constants["D"]
        )
        return Work("attention", name, flops, moved, as_tuple(shape))
    return Work("pointwise", name, _PRODUCTS.get(name, lambda tensors, chunk: 0)(tensors, constants.get("C", 0)), moved)


def _hashed(tensors: list[Tensor], chunk: int) -> int:
    return 2 * tensors[0].numel() * math.prod(tensors[1].shape[2:])


def _gathered(tensors: list[Tensor], chunk: int) -> int:
    k, v, w, *_ = tensors
    return 2 * len(w) * (k.numel() + v.numel())


def _pulled(tensors: list[Tensor], chunk: int) -> int:
    q, w, o, *_ = tensors
    return 2 * len(w) * (q.numel() + o.numel())


def _by_features(of_keys: int, of_values: int, tables: int) -> Callable[[list[Tensor], int], int]:
    """Each token's products of its features with so many vectors of a key's and of a value's width, and as many tables
    of its chunk: what is done under a look-ahead mask, which without one is less."""

    def operations(tensors: list[Tensor], chunk: int) -> int:
        q, _, v, w, *_ = tensors
        tokens, e = q.numel() // q.shape[3], v.shape[3]
        wide = len(w) * (of_keys * q.shape[3] + of_values * e)
        return 2 * tokens * (wide + tables * chunk * (len(w) + e))

    return operations


# Operations of the programs that make products on their way, of their tensors and the tokens of a chunk.
_PRODUCTS: dict[str, Callable[[list[Tensor], int], int]] = {
    "hashing_programs.hashed": _hashed,
    "positive_programs.gather": _gathered,
    "positive_programs.read": _by_features(3, 1, 1),
    "positive_backward_programs.pull": _pulled,
    "positive_backward_programs.back_to_queries": _by_features(3, 1, 1),
    "positive_backward_programs.back_to_keys": _by_features(5, 2, 2),
}
