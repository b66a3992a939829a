"""Launching a program again and again: what Triton has compiled for equal arguments is kept at hand.

Triton looks at every argument of every launch to find the variant that suits it, which takes the host longer than some
programs take the GPU. Here a variant is found by the numbers themselves, and by the type and alignment of the tensors.

An EARLY program begins while the one before it still runs, where it can, and waits for its end before it reads or
writes anything. Because each of them waits, the one before has waited too: what all before have written is there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.programs import may_begin_early

MOST_ACROSS = 65_535  # programs in the second direction of a grid
_MOST = 20_000  # variants at hand, of all lengths of rows that came by
_compiled: dict[tuple[Any, ...], tuple[Any, Any, list[Any]]] = {}


def launch(
    program: Any,
    grid: tuple[int, int],
    tensors: tuple[Any, ...],
    numbers: tuple[int | float, ...],
    constants: dict[str, Any],
    **options: int,
) -> None:
    """`program[grid](*tensors, *numbers, **constants, **options)`; after the first, descriptors of tensors will do."""
    if grid[1] > MOST_ACROSS:
        raise QkvError(
            f"{grid[1]:,} rows times heads are more than a GPU starts at once: give {MOST_ACROSS:,} at most."
        )
    if constants.get("EARLY"):
        can = not torch.compiler.is_compiling() and may_begin_early(tensors[0].device)
        constants, options = {**constants, "EARLY": can}, {**options, "launch_pdl": True} if can else options
    if torch.compiler.is_compiling():
        program[grid](*tensors, *numbers, **constants, **options)
        return
    kinds = tuple([(x.dtype, x.data_ptr() & 15) if isinstance(x, Tensor) else _kind(x) for x in tensors])
    key = (id(program), tensors[0].device, kinds, numbers, *constants.values(), *options.values())
    known = _compiled.get(key)
    if known is not None and known[0] is program:
        known[1][(*grid, 1)](*tensors, *numbers, *known[2])
        return
    if len({x.device for x in tensors if type(x) in (Tensor, nn.Parameter)}) > 1:  # such as one without numbers
        raise QkvError("A program for a GPU was given tensors that lie on several devices.")
    compiled = program[grid](*tensors, *numbers, **constants, **options)
    if compiled is None:  # by an interpreter
        return
    if len(_compiled) >= _MOST:
        _compiled.clear()
    given = len(tensors) + len(numbers)
    _compiled[key] = (program, compiled, [constants[name] for name in program.arg_names[given:]])


def _kind(descriptor: Any) -> tuple[Any, ...]:
    """Descriptors are aligned, and what they say of sizes is read when the program runs."""
    return () if descriptor is None else (descriptor.base.dtype, *descriptor.block_shape)
