"""Whether Triton's programs touch nothing but the tensors they are given, by its interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from torch import Tensor


def span_of(tensor: Tensor) -> tuple[int, int]:
    """The addresses of its first byte and of the first behind its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size() * (tensor.numel() > 0)


@contextmanager
def in_bounds() -> Iterator[list[int]]:
    """Loads and stores outside of the arguments of a launch raise. Yields how many numbers each launch has touched."""
    from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

    spans: list[tuple[int, int]] = []
    touched: list[int] = []
    launch, load, store = (
        GridExecutor.__call__,
        InterpreterBuilder.create_masked_load,
        InterpreterBuilder.create_masked_store,
    )

    def launched(self: Any, *given: Any, **named: Any) -> Any:
        spans[:] = [span_of(each) for each in (*given, *named.values()) if isinstance(each, Tensor)]
        touched.append(0)
        return launch(self, *given, **named)

    def check(what: str, pointers: Any, mask: Any) -> None:
        size = pointers.get_element_ty().primitive_bitwidth // 8
        places = np.asarray(pointers.data)[np.asarray(mask.data).astype(bool)].astype(np.int64)
        inside = np.zeros(places.shape, dtype=bool)
        for begin, end in spans:
            inside |= (places >= begin) & (places + size <= end)
        touched[-1] += places.size
        assert inside.all(), f"A program's {what} goes beyond its tensors in {(~inside).sum()} places of {inside.size}."

    def loaded(self: Any, pointers: Any, mask: Any, *more: Any) -> Any:
        check("load", pointers, mask)
        return load(self, pointers, mask, *more)

    def stored(self: Any, pointers: Any, value: Any, mask: Any, *more: Any) -> Any:
        check("store", pointers, mask)
        return store(self, pointers, value, mask, *more)

    with (
        patch.object(GridExecutor, "__call__", launched),
        patch.object(InterpreterBuilder, "create_masked_load", loaded),
        patch.object(InterpreterBuilder, "create_masked_store", stored),
    ):
        yield touched
