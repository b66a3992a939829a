"""Work recorded once as a CUDA graph and replayed: the host then says one thing, not one for each operator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

Value = TypeVar("Value")
Pool = Any  # as `torch.cuda.graph_pool_handle` names one

_holding: list[list[Any]] = []  # of each record under way, what must outlive it


def recorded(work: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The same work as one CUDA graph; on other devices the work itself.

    It is done once beforehand, so that libraries take their memory and programs are compiled outside the record.
    """
    if device.type != "cuda":
        return work
    aside, current = _aside(device), torch.cuda.current_stream(device)
    aside.wait_stream(current)
    with torch.cuda.device(device), torch.cuda.stream(aside):
        work()
    current.wait_stream(aside)

    def tensorless() -> tuple[Tensor, ...]:
        work()
        return ()

    replay = captured(tensorless, device)

    def again() -> None:
        replay()

    return again


def captured(
    work: Callable[[], tuple[Tensor, ...]], device: torch.device, pool: Pool | None = None
) -> Callable[[], tuple[Tensor, ...]]:
    """The same work as one CUDA graph: each call does it, and fills anew the very tensors that the work gave.

    Recording does nothing on the device. Whoever records has done the work before, so that libraries are loaded and
    programs compiled. Records of one `pool` share memory: of two, one may run when the other has ended and what it
    gave was read or is still held. On other devices the work itself is done each time.
    """
    if device.type != "cuda":
        return _in_place(work)
    pool = torch.cuda.graph_pool_handle() if pool is None else pool
    index = torch.cuda.current_device() if device.index is None else device.index
    # Before, because the way it is known which numbers a graph has drawn is broken by one that was never ended.
    generator = torch.cuda.default_generators[index]
    chance = generator.clone_state()
    graph = torch.cuda.CUDAGraph()
    held: list[Any] = []
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()  # what plain steps held: a pool cannot take from it
    # One stream for all records, without which they would share no memory. Not by torch.cuda.graph, which leaves its
    # stream the current one where a record cannot be ended.
    with torch.cuda.device(device), torch.cuda.stream(_aside(device)):
        _holding.append(held)
        ended = False
        try:
            # Other threads may go on: those that make batches, and the one that goes backwards, whose calls are ours.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            given = work()
            graph.capture_end()
            ended = True
        finally:
            _holding.pop()
            if not ended:
                _abandon(graph, index, pool)
                generator.graphsafe_set_state(chance)

    def replay(alive: list[Any] = held) -> tuple[Tensor, ...]:
        graph.replay()
        return given

    return replay


def hold(value: Value) -> Value:
    """The same, kept for as long as a record that is being made: for tensors that a cache may forget meanwhile."""
    if not torch.compiler.is_compiling():
        for each in _holding:
            each.append(value)
    return value


def _in_place(work: Callable[[], tuple[Tensor, ...]]) -> Callable[[], tuple[Tensor, ...]]:
    kept: list[tuple[Tensor, ...]] = []

    def again() -> tuple[Tensor, ...]:
        given = work()
        if not kept:
            kept.append(given)
        for there, now in zip(kept[0], given, strict=True):
            if there is not now:
                there.copy_(now)
        return kept[0]

    return again


def _abandon(graph: torch.cuda.CUDAGraph, index: int, pool: Pool) -> None:
    """End a record that failed. torch leaves its memory as if under way where the graph came to nothing."""
    with suppress(RuntimeError):
        graph.capture_end()
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(index, pool)
        torch._C._cuda_releasePool(index, pool)
    with suppress(RuntimeError):
        graph.reset()


@lru_cache(maxsize=16)
def _aside(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
