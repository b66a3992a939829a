"""Figures of training, read back from the device without making it wait."""

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.parts.device import wait_for
from qkv.train.step import Update


class Stopwatch:
    """Seconds spent training, over all sessions of a run, and the most memory that training held in this one.

    Evaluation and saving happen while it is paused.
    """

    def __init__(self, device: torch.device, seconds: float = 0.0, paused_seconds: float = 0.0) -> None:
        self.paused_seconds = paused_seconds
        self._device = device
        self._spent = seconds
        self._since: float | None = time.perf_counter()  # None while paused
        self._most = 0  # bytes, before the last pause
        self._forget_peak()

    @property
    def seconds(self) -> float:
        return self._spent + (0.0 if self._since is None else time.perf_counter() - self._since)

    @property
    def peak_memory(self) -> int | None:
        """Bytes: the most that steps held on a GPU, or the most that this process held in all (None where unknown)."""
        if self._since is None:
            return self._most or None
        peak = peak_memory(self._device)
        return None if peak is None else max(peak, self._most)

    def _forget_peak(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    @contextmanager
    def paused(self) -> Iterator[None]:
        wait_for(self._device)  # steps still queued are training time, not evaluation time
        self._most = self.peak_memory or 0  # while it still runs: what is asked of a paused one is what is kept here
        self._spent, self._since = self.seconds, None
        stopped = time.perf_counter()
        try:
            yield
        finally:
            self._since = time.perf_counter()
            self._forget_peak()
            self.paused_seconds += self._since - stopped


@dataclass
class _Pending:
    """A closed window whose numbers are on their way to the host."""

    record: dict[str, Any]
    counts: list[int]
    flops: float
    beside: list[str]  # names of the m figures that the objective told of its last batch
    numbers: Tensor  # [2 n + m] summed losses, gradient norms, those figures
    arrived: torch.cuda.Event | None


class Meter:
    """Collects updates into windows of `log_every` steps and makes one record of each."""

    def __init__(self, device: torch.device, stopwatch: Stopwatch, peak: float | None = None) -> None:
        """`peak`: operations a second that the device has at most, where they are known."""
        self.device = device
        self.stopwatch = stopwatch
        self.peak = peak
        self.skipped = 0  # updates of the run that were not applied
        self.skipped_in_a_row = 0
        self.longest_skip = 0  # the most that were skipped in a row
        self.skipped_at: int | None = None  # the step of the last one
        self.ends_finite = True  # whether the last loss that was read back is
        self._losses: list[Tensor] = []
        self._norms: list[Tensor] = []
        self._counts: list[int] = []
        self._beside: dict[str, Tensor] = {}
        self._flops = 0.0
        self._pending: _Pending | None = None
        self._last_seconds = stopwatch.seconds
        self._first: tuple[int, float] | None = None  # step and seconds at the end of the first window
        self._latest: tuple[int, float] | None = None

    @property
    def step_seconds(self) -> float | None:
        """Of a step, on average, after the first window of this session: what is new to a device takes longer."""
        if self._first is None or self._latest is None or self._latest[0] == self._first[0]:
            return None
        return (self._latest[1] - self._first[1]) / (self._latest[0] - self._first[0])

    def add(self, update: Update) -> None:
        self._losses.append(update.total)
        self._norms.append(update.norm)
        self._counts.append(update.count)
        self._beside = dict(update.beside)
        self._flops += update.flops

    def close_window(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        """Start reading the window back; returns the record of the window before, which has long arrived.

        Waiting for that one also keeps the host from running more than two windows ahead of the device, which would
        make its clock meaningless.
        """
        ready = self.collect()
        if not self._counts:
            return ready
        beside = [figure.to(self._losses[0].dtype) for figure in self._beside.values()]
        numbers = torch.stack([*self._losses, *self._norms, *beside])  # [2 n + m]
        arrived = None
        if numbers.is_cuda:
            host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            numbers = host.copy_(numbers, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record(torch.cuda.current_stream(self.device))
        self._pending = _Pending(record, self._counts, self._flops, list(self._beside), numbers, arrived)
        self._losses, self._norms, self._counts, self._beside, self._flops = [], [], [], {}, 0.0
        return ready if arrived is not None else [*ready, *self.collect()]

    def poll(self) -> list[dict[str, Any]]:
        """The closed window's record if its numbers have arrived."""
        if self._pending is None or (self._pending.arrived is not None and not self._pending.arrived.query()):
            return []
        return self.collect()

    def collect(self) -> list[dict[str, Any]]:
        """The closed window's record, waiting for it if need be."""
        if self._pending is None:
            return []
        pending, self._pending = self._pending, None
        if pending.arrived is not None:
            pending.arrived.synchronize()
        steps, numbers = len(pending.counts), pending.numbers.tolist()
        losses, norms, beside = numbers[:steps], numbers[steps : 2 * steps], numbers[2 * steps :]
        self.ends_finite = math.isfinite(losses[-1])
        finite = [math.isfinite(norm) for norm in norms]
        for before_last, fine in zip(reversed(range(len(finite))), finite, strict=True):
            self.skipped += not fine
            if not fine and "step" in pending.record:
                self.skipped_at = pending.record["step"] - before_last
            self.skipped_in_a_row = 0 if fine else self.skipped_in_a_row + 1
            self.longest_skip = max(self.longest_skip, self.skipped_in_a_row)
        tokens = sum(count for count, fine in zip(pending.counts, finite, strict=True) if fine)
        seconds = self.stopwatch.seconds
        elapsed, self._last_seconds = seconds - self._last_seconds, seconds
        if "step" in pending.record:
            self._latest = pending.record["step"], seconds
            self._first = self._first or self._latest
        record = {
            **pending.record,
            "seconds": round(seconds, 3),
            "loss": sum(loss for loss, fine in zip(losses, finite, strict=True) if fine) / tokens if tokens else None,
            "gradient_norm": norms[-1] if finite[-1] else None,
            "tokens_per_second": round(sum(pending.counts) / elapsed, 1) if elapsed > 0 else None,
            "skipped": self.skipped,
            "peak_memory": self.stopwatch.peak_memory,
            **self._shares(pending, elapsed),
        }
        if beside:
            figures = zip(pending.beside, beside, strict=True)
            record["experts"] = {name: value if math.isfinite(value) else None for name, value in figures}
        return [record]

    def _shares(self, pending: _Pending, elapsed: float) -> dict[str, float]:
        """How much of the device's arithmetic was used, where that is known, and of the time spent on data."""
        found = {}
        if self.peak and pending.flops and elapsed > 0:
            found["flops_utilisation"] = round(pending.flops / elapsed / self.peak, 5)
        if elapsed > 0 and "data_wait" in pending.record:
            found["data_wait_share"] = round(min(1.0, pending.record["data_wait"] / elapsed), 5)
        return found

    def state_dict(self) -> dict[str, Any]:
        """With the steps of the window still open, so that a resumed run writes the very record it would have."""
        assert self._pending is None, "collect() first"
        return {
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
            "skipped_at": self.skipped_at,
            "ends_finite": self.ends_finite,
            "seconds": self.stopwatch.seconds - self._last_seconds,
            "counts": self._counts,
            "flops": self._flops,
            # As text: JSON has no way to write a NaN.
            "losses": [repr(loss.item()) for loss in self._losses],
            "norms": [repr(norm.item()) for norm in self._norms],
            "beside": {name: repr(figure.item()) for name, figure in self._beside.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skipped, self.skipped_in_a_row = state["skipped"], state["skipped_in_a_row"]
        self.skipped_at, self.ends_finite = state["skipped_at"], state["ends_finite"]
        self._last_seconds = self.stopwatch.seconds - state["seconds"]
        self._counts = list(state["counts"])
        self._losses = [torch.tensor(float(loss), device=self.device) for loss in state["losses"]]
        self._norms = [torch.tensor(float(norm), device=self.device) for norm in state["norms"]]
        self._flops = state.get("flops", 0.0)  # checkpoints of earlier versions have none of these two
        told = state.get("beside", {})
        self._beside = {name: torch.tensor(float(figure), device=self.device) for name, figure in told.items()}


def peak_memory(device: torch.device) -> int | None:
    """Bytes: the most that torch held on a GPU, or the most that this process held in all (None where unknown)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return None
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
