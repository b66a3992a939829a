"""A comparison as files: a table, a page, and a picture of every plot."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from qkv.api.comparison import FILE, Comparison, table
from qkv.api.findings import Findings, findings
from qkv.files import write_whole
from qkv.look.axes import Axis, Logarithmic, Scale
from qkv.look.axes import Linear as LinearScale
from qkv.look.curves import Curve
from qkv.look.plots_page import Plot, Remarks, Table, write_plots_page

BITS = Axis("bits per byte, held-out text")
NOWHERE = "nowhere in what was measured"
NOTE = (
    "A line for each seed. The learning rate of every run falls over its own budget: runs are finished at the end of "
    "their lines only, and elsewhere on their way."
)
MOST = 0.5  # of a run's steps
GAP = math.nan  # between the lines of two seeds


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """compare.json, table.md, page.html and the plots."""
    comparison.save(folder)
    text = table(comparison)
    written = [folder / FILE, write_whole(folder / "table.md", text.encode())]
    head, _, *rows = [line.strip("| ").split(" | ") for line in text.splitlines()]
    remarks = [_remarks(each) for each in findings(comparison)]
    about = [". ".join(f"{name}: {value}" for name, value in comparison.about.items()) + ".", *caveats(comparison)]
    title = "Variants compared"
    return written + write_plots_page(folder, title, about, Table(head, rows), remarks, plots(comparison))


def caveats(comparison: Comparison) -> list[str]:
    """What a reader of the figures should know."""
    said = []
    alone = [outcome.name for outcome in comparison.outcomes if len(outcome.runs) == 1]
    if alone:
        said.append(f"With one seed a difference may be chance: {', '.join(alone)}.")
    asked = any(run.replayed is not None for outcome in comparison.outcomes for run in outcome.runs)
    plain = [each.name for each in comparison.outcomes if any((run.replayed or 0) < MOST for run in each.runs)]
    if asked and plain:
        said.append(
            "Steps were recorded as one launch each where they can be. Those of the following were launched operator "
            f"by operator, and may be slower for the host's sake: {', '.join(plain)}."
        )
    elif asked:
        said.append("Steps were recorded as one launch each, so that no variant waits for the host.")
    return said


def _remarks(found: Findings) -> Remarks:
    groups: list[tuple[str, Sequence[str]]] = [
        ("Ahead:", found.ahead or [NOWHERE]),
        ("Behind:", found.behind or [NOWHERE]),
    ]
    if found.undecided:
        groups.append(("Not told apart:", found.undecided))
    return Remarks(found.name, groups)


def plots(comparison: Comparison) -> list[Plot]:
    """Quality against time, operations, steps, memory and context; speed against length where it was measured."""
    found = [
        _by_cost(comparison, "seconds", "time", "training time, seconds", LinearScale()),
        _by_cost(comparison, "flops", "operations", "operations, FLOP", Logarithmic()),
        _by_cost(comparison, "step", "steps", "updates", LinearScale()),
        _by_memory(comparison),
        _by_context(comparison),
        _by_length(comparison, "speed", "Speed", "tokens a second", lambda speed: speed.tokens_per_second, 1),
        _by_length(comparison, "memory-by-length", "Memory", "peak memory, GB", lambda speed: speed.peak_memory, 1e9),
    ]
    return [plot for plot in found if plot is not None]


def _by_cost(comparison: Comparison, cost: str, name: str, label: str, scale: Scale) -> Plot | None:
    curves = [
        _joined(
            each.name,
            ([(getattr(moment, cost), moment.bits_per_byte) for moment in run.moments] for run in each.runs),
        )
        for each in comparison.outcomes
    ]
    if not all(value > 0 for curve in curves for value in curve.x if math.isfinite(value)):
        return None  # nothing was counted
    return Plot(f"{name}.png", f"Quality against {name}", curves, Axis(label, scale), BITS, NOTE)


def _by_memory(comparison: Comparison) -> Plot | None:
    curves = []
    for each in comparison.outcomes:
        points = [(run.peak_memory / 1e9, run.bits_per_byte) for run in each.runs if run.peak_memory is not None]
        if not points:
            return None
        curves.append(_joined(each.name, ([point] for point in points)))
    axis = Axis("peak memory of training, GB")
    return Plot("memory.png", "Quality against memory", curves, axis, BITS, "A point for each seed.")


def _by_context(comparison: Comparison) -> Plot:
    curves = [
        _joined(each.name, ([(part.most, part.bits_per_byte) for part in run.contexts] for run in each.runs))
        for each in comparison.outcomes
    ]
    note = (
        "Held-out tokens, by how many tokens stand before them in their row: each point is the mean of all tokens with "
        "as much context, and more than the point before it."
    )
    axis = Axis("tokens of context, at most", Logarithmic())
    return Plot("context.png", "Quality against length of context", curves, axis, BITS, note)


def _by_length(
    comparison: Comparison, file: str, what: str, label: str, figure: Callable[..., float | None], unit: float
) -> Plot | None:
    curves = []
    for each in comparison.outcomes:
        points = [(speed.length, value / unit) for speed in each.speeds if (value := figure(speed)) is not None]
        if points:
            curves.append(_joined(each.name, [points]))
    if not curves:
        return None
    note = "A training step, measured by itself; a line ends where a step no longer fits into the memory."
    axes = Axis("tokens of a row", Logarithmic()), Axis(label, Logarithmic())
    return Plot(f"{file}.png", f"{what} against length", curves, *axes, note)


def _joined(name: str, lines: Iterable[Sequence[tuple[float, float]]]) -> Curve:
    """The lines of all seeds as one curve with gaps."""
    points = [point for line in lines for point in (*line, (GAP, GAP))]
    return Curve(name, [x for x, _ in points], [y for _, y in points])
