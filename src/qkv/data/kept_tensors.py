"""Tensors that are made once for a device and stay there: to send them anew would make it wait."""

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import TypeVar, cast

from torch import Tensor

Make = TypeVar("Make", bound=Callable[..., Tensor])


class _NotKept(Exception):
    """Of a tensor without numbers."""

    def __init__(self, made: Tensor) -> None:
        self.made = made


def keeping_tensors(make: Make) -> Make:
    """As `lru_cache`, but what only stands for a tensor is not kept.

    While a step is counted by its shapes, or a compiler looks on, a function gives something without numbers. A run
    that found it later would have programs read memory that is none.
    """

    @lru_cache(maxsize=64)
    def kept(*given: Hashable) -> Tensor:
        made = make(*given)
        if type(made) is not Tensor or made.is_meta:
            raise _NotKept(made)
        return made

    @wraps(make)
    def found(*given: Hashable) -> Tensor:
        try:
            return kept(*given)
        except _NotKept as what:
            return what.made

    return cast(Make, found)
