"""Memory for matrices that are read from end to end at every step: in large pages, one matrix behind the other.

A processor looks up where a page lies, and fetches ahead no farther than to its end, which of 4 KB comes too soon: of
pages of 2 MB two cores read a tenth to a half more. Systems give such pages to those who ask, if they have any.
A matrix may be smaller than a page, so several share a piece of memory, which is given back with the last of them.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from threading import Lock

import torch
from torch import Tensor

PAGE = 2**21  # bytes
PIECE = 16 * PAGE  # asked for at a time: nothing of it is taken before it is written to
LINE = 64  # bytes, which are read at once


class LargePages:
    """Where the next matrix begins."""

    def __init__(self) -> None:
        self._piece: mmap.mmap | None = None
        self._next = self._end = 0
        self._lock = Lock()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Of this shape, with any numbers in it."""
        size = torch.Size(shape).numel()
        if size == 0 or not hasattr(mmap, "MADV_HUGEPAGE"):  # the system has no such pages, or none to ask for
            return torch.empty(shape, dtype=dtype)
        wanted = -(-size * dtype.itemsize // LINE) * LINE
        with self._lock:
            if self._piece is None or self._next + wanted > self._end:
                self._begin_piece(wanted)
            assert self._piece is not None
            begin, self._next = self._next, self._next + wanted
            return torch.frombuffer(self._piece, dtype=dtype, count=size, offset=begin).view(shape)

    def _begin_piece(self, wanted: int) -> None:
        size = -(-max(wanted, PIECE) // PAGE) * PAGE
        self._piece = mmap.mmap(-1, size + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a system built without them: its pages are small, and hold the same
            self._piece.madvise(mmap.MADV_HUGEPAGE)
        self._next = -torch.frombuffer(self._piece, dtype=torch.uint8).data_ptr() % PAGE
        self._end = self._next + size


_pages = LargePages()


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Of this shape, with any numbers in it, where matrices of one process lie."""
    return _pages.empty(shape, dtype)
