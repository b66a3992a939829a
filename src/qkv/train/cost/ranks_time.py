"""How long a step of a rank takes: what it computes, and what it waits for that others send.

Parameters come while the block before theirs is computed, and gradients leave while the next ones are: such messages
cost time only where they take longer than that. [zhao2023 §3.3]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from qkv.train.cost.measure_host import calls_of, launches
from qkv.train.cost.operators import Work
from qkv.train.cost.prediction import busy_times
from qkv.train.cost.profile import DeviceProfile
from qkv.train.cost.ranks_links import (
    BACK_PARAMETERS,
    BETWEEN_GROUPS,
    FIGURES,
    FORWARD_PARAMETERS,
    GATHER,
    GRADIENTS,
    HIDDEN_BACK,
    HIDDEN_FORWARD,
    SCATTER,
    SUM,
    WAITED_BACK,
    WAITED_FORWARD,
    Links,
    Message,
    seconds_of,
)
from qkv.train.cost.ranks_model import Unit
from qkv.train.cost.tracer import BACKWARD, FORWARD, UPDATE, Trace
from qkv.train.settings import TrainSettings


def times(
    profile: DeviceProfile,
    settings: TrainSettings,
    links: Links,
    per_node: int,
    passes: Trace,
    update: Trace,
    units: Sequence[Unit],
    messages: Sequence[Message],
    flops: float,
) -> dict[str, Any]:
    """Gathered and scattered parameters hide behind what is computed; tensor sums, keys and tokens are waited for."""
    precision = settings.precision
    computed = {phase: _computing(passes, profile, precision, phase) for phase in (FORWARD, BACKWARD)}
    for phase, kinds in ((FORWARD, HIDDEN_FORWARD), (BACKWARD, (BACK_PARAMETERS, GRADIENTS))):
        for each in messages:  # into one piece of memory before they are sent, or out of it after
            if each.kind in kinds:
                computed[phase] += each.times * profile.seconds(Work("copy", "message", 0, 2 * each.bytes))
    forward = computed[FORWARD] + seconds_of(messages, WAITED_FORWARD, links, per_node)
    backward = computed[BACKWARD] + seconds_of(messages, WAITED_BACK, links, per_node)
    # Nothing is computed before the first block is there, nor after the last gradients are on their way.
    first, last = _at_the_ends(units, links, per_node)
    ends = (first + last) * settings.accumulate
    forward = max(forward, seconds_of(messages, HIDDEN_FORWARD, links, per_node) - first)
    backward = max(backward, seconds_of(messages, HIDDEN_BACK, links, per_node) - last)
    changing = _computing(update, profile, precision, UPDATE)
    seconds = forward + backward + changing + ends + seconds_of(messages, (FIGURES,), links, per_node)
    computing = computed[FORWARD] + computed[BACKWARD] + changing
    peak = profile.peak(precision)
    return {
        "seconds": seconds,
        "compute_seconds": computing,
        "waiting_seconds": seconds - computing,
        "fraction_of_peak": flops / seconds / peak if peak else None,
    }


def _at_the_ends(units: Sequence[Unit], links: Links, per_node: int) -> tuple[float, float]:
    """Seconds before a pass can begin, and after it has computed everything."""
    staying = [unit for unit in units if unit.stays]
    begins = [*staying, *[unit for unit in units if not unit.stays][:1]]
    first = [Message(FORWARD_PARAMETERS, GATHER, unit.ranks, unit.apart, unit.whole()) for unit in begins]
    last = [Message(GRADIENTS, SCATTER, unit.ranks, unit.apart, unit.whole(True)) for unit in staying]
    last += [
        Message(BETWEEN_GROUPS, SUM, unit.replicas, unit.ranks * unit.apart, unit.held(True))
        for unit in staying
        if unit.replicas > 1
    ]
    return tuple(sum(each.seconds(links, per_node) for each in side) for side in (first, last))  # type: ignore


def _computing(trace: Trace, profile: DeviceProfile, precision: str, phase: str) -> float:
    """Seconds of a phase: of the device, or of its host where that is slower."""
    busy = sum(seconds for (when, _, _), seconds in busy_times(trace, profile) if when == phase)
    host = profile.host[f"{precision} {phase}"] * launches(trace)[phase]
    own = replace(trace, works=type(trace.works)({key: n for key, n in trace.works.items() if key[0] == phase}))
    host += sum(profile.host.get(kernel, 0.0) * times for kernel, times in calls_of(own).items())
    return max(busy, host) if profile.kind == "cuda" else busy + host
