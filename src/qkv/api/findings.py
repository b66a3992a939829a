"""Where each variant of a comparison is ahead and where it loses, in sentences made of the figures alone."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

from qkv.api.comparison import Comparison, Outcome, Run

COSTS = {"seconds": "training time", "flops": "operations", "step": "steps"}
TELLING = 0.0005  # bits per byte: what is less is not written with three digits
LARGER = 1.02  # a ratio that is worth a sentence


@dataclass
class Findings:
    """Of one variant: what speaks for it, what against it, and what the seeds cannot tell."""

    name: str
    ahead: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)


def findings(comparison: Comparison) -> list[Findings]:
    """One entry for each variant, all but the first measured against the first, and each against the best."""
    return [_of(outcome, comparison) for outcome in comparison.outcomes]


def _of(outcome: Outcome, comparison: Comparison) -> Findings:
    found = Findings(outcome.name)
    _against_the_best(outcome, comparison, found)
    first = comparison.outcomes[0]
    if outcome is not first:
        for cost, spoken in COSTS.items():
            _at_equal_cost(outcome, first, cost, spoken, found)
        _by_context(outcome, first, found)
        _by_ratio(outcome, first, "peak memory", lambda run: run.peak_memory, False, found)
        _by_ratio(
            outcome,
            first,
            "tokens a second",
            lambda run: run.tokens / run.seconds if run.seconds else None,
            True,
            found,
        )
        _by_length(outcome, first, found)
    _along_the_way(outcome, comparison, found)
    return found


def _against_the_best(outcome: Outcome, comparison: Comparison, found: Findings) -> None:
    """At the end of the budget, among all."""
    if len(comparison.outcomes) < 2:
        return
    others = [other for other in comparison.outcomes if other is not outcome]
    best = min(others, key=_final)
    _judge(outcome, best, lambda run: run.bits_per_byte, "when the budget is spent", found, all_others=True)


def _at_equal_cost(outcome: Outcome, first: Outcome, cost: str, spoken: str, found: Findings) -> None:
    spent = min(outcome.end(cost), first.end(cost))
    words = f"at equal {spoken} ({_amount(cost, spent)})"
    if outcome.mean(lambda run: run.at(cost, spent)) is None or first.mean(lambda run: run.at(cost, spent)) is None:
        found.undecided.append(f"{words} {first.name} cannot be compared: no evaluation of both came so early")
        return
    _judge(outcome, first, lambda run: run.at(cost, spent), words, found)


def _by_context(outcome: Outcome, first: Outcome, found: Findings) -> None:
    """The longest stretch of context, and from where on a variant is behind."""
    apart = []  # (stretch, how far behind)
    for stretch in outcome.runs[0].contexts:
        ours, theirs = (each.mean(_bits_after(stretch.least)) for each in (outcome, first))
        if ours is not None and theirs is not None:
            apart.append((stretch, ours - theirs))
    if not apart:
        return
    last, _ = apart[-1]
    words = f"with {last.least:,} to {last.most:,} tokens of context"
    _judge(outcome, first, _bits_after(last.least), words, found)
    gaps = [difference for _, difference in apart]
    widest = max(range(len(gaps)), key=gaps.__getitem__)
    if gaps[widest] >= TELLING and widest != len(gaps) - 1:
        stretch = apart[widest][0]
        found.behind.append(
            f"farthest behind {first.name}, by {gaps[widest]:.3f} bits, with {stretch.least:,} to {stretch.most:,} "
            "tokens of context"
        )


def _by_ratio(
    outcome: Outcome,
    first: Outcome,
    what: str,
    figure: Callable[[Run], float | None],
    more_is_better: bool,
    found: Findings,
) -> None:
    ours, theirs = outcome.mean(figure), first.mean(figure)
    if not ours or not theirs:
        return
    ratio = ours / theirs
    if max(ratio, 1 / ratio) < LARGER:
        return
    better = (ratio > 1) == more_is_better
    (found.ahead if better else found.behind).append(f"{ratio:.2f} times the {what} of {first.name}")


def _by_length(outcome: Outcome, first: Outcome, found: Findings) -> None:
    """Steps on rows of several lengths: on which it is faster, and on which slower."""
    theirs = {speed.length: speed.tokens_per_second for speed in first.speeds}
    faster, slower = [], []
    for speed in outcome.speeds:
        reference = theirs.get(speed.length)
        if reference and speed.tokens_per_second is None:
            found.behind.append(
                f"a step on a row of {speed.length:,} tokens, which {first.name} takes, cannot be taken"
            )
        elif reference and speed.tokens_per_second:
            ratio = speed.tokens_per_second / reference
            told = f"{ratio:.2f} at {speed.length:,}"
            faster += [told] * (ratio >= LARGER)
            slower += [told] * (ratio <= 1 / LARGER)
        elif speed.tokens_per_second and speed.length in theirs:
            found.ahead.append(f"it takes a step on a row of {speed.length:,} tokens, and {first.name} cannot")
    for ratios, where in ((faster, found.ahead), (slower, found.behind)):
        if ratios:
            where.append(f"times the speed of {first.name} on rows of so many tokens: {', '.join(ratios)}")


def _along_the_way(outcome: Outcome, comparison: Comparison, found: Findings) -> None:
    """The stretch of training time in which no other was as good."""
    if len(comparison.outcomes) < 2:
        return
    times = sorted({moment.seconds for each in comparison.outcomes for run in each.runs for moment in run.moments})
    led = []
    for time in times:
        standing = {each.name: each.mean(partial(Run.at, cost="seconds", amount=time)) for each in comparison.outcomes}
        known = {name: bits for name, bits in standing.items() if bits is not None}
        if len(known) == len(standing):
            led.append((time, min(known, key=known.__getitem__) == outcome.name))
    if led and all(best for _, best in led):
        found.ahead.append(f"the best of all from {led[0][0]:,.1f} s on, as long as all were trained")
        return
    for best, stretch in groupby(led, key=lambda each: each[1]):
        times = [time for time, _ in stretch]
        if best:
            when = f"at {times[0]:,.1f} s" if len(times) == 1 else f"from {times[0]:,.1f} s to {times[-1]:,.1f} s"
            found.ahead.append(f"the best of all {when} of training")


def _judge(
    ours: Outcome,
    theirs: Outcome,
    figure: Callable[[Run], float | None],
    words: str,
    found: Findings,
    all_others: bool = False,
) -> None:
    """Ahead or behind by so many bits; where the seeds of both overlap, that they cannot tell."""
    one, other = ours.mean(figure), theirs.mean(figure)
    one_range, other_range = ours.range(figure), theirs.range(figure)
    if one is None or other is None or one_range is None or other_range is None:
        return
    difference = one - other
    overlap = one_range[0] <= other_range[1] and other_range[0] <= one_range[1]
    several = len(ours.runs) > 1 or len(theirs.runs) > 1
    if abs(difference) < TELLING:
        found.undecided.append(f"{words} level with {theirs.name}")
    elif several and overlap:
        nearer = "ahead of" if difference < 0 else "behind"
        found.undecided.append(f"{words} {abs(difference):.3f} bits {nearer} {theirs.name}, within the range of seeds")
    elif difference < 0:
        rest = f"the best of all, {-difference:.3f} bits ahead of {theirs.name}"
        found.ahead.append(f"{words} {rest if all_others else f'{-difference:.3f} bits ahead of {theirs.name}'}")
    else:
        best = ", the best" if all_others else ""
        found.behind.append(f"{words} {difference:.3f} bits behind {theirs.name}{best}")


def _bits_after(least: int) -> Callable[[Run], float | None]:
    def figure(run: Run) -> float | None:
        return next((each.bits_per_byte for each in run.contexts if each.least == least), None)

    return figure


def _final(outcome: Outcome) -> float:
    found = outcome.mean(lambda run: run.bits_per_byte)
    assert found is not None
    return found


def _amount(cost: str, spent: float) -> str:
    if cost == "seconds":
        return f"{spent:,.1f} s"
    return f"{spent / 1e15:.3g} PFLOP" if cost == "flops" else f"{spent:,.0f}"
