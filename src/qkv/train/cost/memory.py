"""How much memory a step held at most, and whose it was."""

from __future__ import annotations

from dataclasses import dataclass, fields

from qkv.train.cost.tracer import BACKWARD, FORWARD, Trace


@dataclass(frozen=True)
class Memory:
    """Bytes at the moment when the most is held."""

    weights: int
    gradients: int
    optimizer: int
    activations: int  # made on the way forward and kept for the way back
    temporary: int  # all else: what one operator hands to the next, and what kernels take for themselves

    @property
    def total(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self))


def peak_of(trace: Trace, always: int = 0) -> Memory:
    """The peak of a step; `always` bytes are held by the libraries that a device's kernels come from."""
    now = most = 0
    at, brief_then = 0, 0
    brief = _largest_by_event(trace)
    for place, (number, taken) in enumerate(trace.events, 1):
        now += trace.held[number].bytes if taken else -trace.held[number].bytes
        while_running = brief.get(place, 0)
        if now + while_running > most:
            most, at, brief_then = now + while_running, place, while_running
    parts = dict.fromkeys(("weights", "gradients", "optimizer", "activations", "temporary"), 0)
    live: set[int] = set()
    for number, taken in trace.events[:at]:
        live.add(number) if taken else live.discard(number)
    for number in live:
        held = trace.held[number]
        kept = held.phase == FORWARD and held.freed_in == BACKWARD
        parts[held.owner or ("activations" if kept else "temporary")] += held.bytes
    parts["temporary"] += brief_then + always
    return Memory(**parts)


def _largest_by_event(trace: Trace) -> dict[int, int]:
    found: dict[int, int] = {}
    for event, size in trace.brief:
        found[event] = max(found.get(event, 0), size)
    return found
