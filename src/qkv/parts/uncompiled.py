"""Functions that a compiler leaves as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def uncompiled(function: Function) -> Function:
    """The function, never part of a graph. It is `torch.compiler.disable`, which would load the compiler here and now.

    That takes seconds, for those who compile nothing too.
    """
    apart: list[Any] = []

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        if "torch._dynamo" not in sys.modules:  # nobody compiles
            return function(*given, **named)
        if not apart:
            apart.append(torch.compiler.disable(function))
        return apart[0](*given, **named)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]
