"""Whether two ways of computing agree: the second half of the guard whose first half is `spec.py`.

Attributes can be understood and yet a program be wrong. So whoever binds a faster way runs a few tokens both ways and
compares what comes out, by what a precision can promise.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from qkv.errors import QkvWarning
from qkv.parts.precision import widened
from qkv.parts.spec import NotUnderstood, Spec, spec

ROWS = 2
# Of the root mean square of what steps add to a stream, and of the stream itself: by how much two ways may differ.
_SINGLE, _HALF = (1e-3, 1e-5), (0.1, 0.02)


def disagreement(fast: Tensor, plain: Tensor, before: Tensor | None = None, *, rounded: bool = False) -> str | None:
    """How far two answers are apart, if they are further than rounding explains. `before` is what steps began with.

    `rounded`: maps inside round to 8 bits, so that a number that falls on the other side moves by a whole step.
    """
    if fast.shape != plain.shape or fast.dtype != plain.dtype:
        return f"shapes or types differ: {list(fast.shape)} for {list(plain.shape)}"
    of_added, of_stream = _SINGLE if plain.dtype == torch.float32 and not rounded else _HALF
    wide, other = widened(fast), widened(plain)
    whole = _size(other)
    added = whole if before is None else _size(other - widened(before))
    apart, most = _size(wide - other), of_added * added + of_stream * whole
    if apart <= most or (apart != apart and bool((wide.isnan() == other.isnan()).all())):
        return None
    return f"they are {apart / max(added, 1e-30):.1%} apart, where {most / max(added, 1e-30):.1%} are rounding"


def _size(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def distinct(blocks: Iterable[nn.Module]) -> list[int]:
    """The numbers of those blocks that are unlike all before them, but for the numbers in their tensors.

    One that is not understood, such as a compiled one, is unlike any other.
    """
    seen: dict[Spec | int, int] = {}
    for number, block in enumerate(blocks):
        try:
            seen.setdefault(spec(block), number)
        except NotUnderstood:
            seen[number] = number
    return list(seen.values())


def tokens_like(weight: Tensor, *shape: int, seed: int = 0) -> Tensor:
    """Numbers to compare two ways by: the same each time, and nobody's random state moves."""
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(weight.device, weight.dtype)


refused: list[str] = []  # what was said in this process, for the record of a run


def say_refused(way: str, why: str) -> None:
    """Told once, because results show nothing of it."""
    sentence = f"{way} is not used here: {why}; the model's own parts do its work."
    if sentence not in refused:
        refused.append(sentence)
        warnings.warn(sentence, QkvWarning, stacklevel=3)
