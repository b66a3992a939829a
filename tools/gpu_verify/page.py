"""Writes docs/gpu.md of what was verified."""

from __future__ import annotations

import hashlib
from datetime import date
from pathlib import Path

from tools.gpu_verify.depends import ROOT, SHORT
from tools.gpu_verify.parts import BENCHMARKS, TESTS, TRAININGS, Part, Step, parts
from tools.gpu_verify.state import FAILED, NOT_MEASURED, PASSED, STALE, Result, State

PAGE = ROOT / "docs" / "gpu.md"
TITLES = {
    TESTS: ("Tests that need a GPU", "Every test marked `gpu`, by its room. A step is a file of tests."),
    TRAININGS: (
        "Trainings and answers",
        "`qkv train` of one size of every family that a command trains, for some 30 steps, in bfloat16, with the "
        "family's own dropout, from files; then `qkv run` with what came of it, in bfloat16 on the GPU and in float32 "
        "on the CPU. At least 80% of all words must be equal, labels and tokens among them, and of lines whose words "
        "are equal numbers may be apart by 10% of their length. A step is a training with its answers.",
    ),
    BENCHMARKS: (
        "Benchmarks beside their last results",
        "Each row beside the one in `bench/results/`, which it then replaces. None of our own figures may fall below "
        "0.9 of the last. A step is a piece of work of a script.",
    ),
}
HEAD = """# What works on a GPU

CI has no GPU. What is verified on one is verified in parts of nine minutes at most, each of which can be stopped and
gone on with: `make gpu-verify PART=train-language`, or `make gpu-verify` for whatever is due, as long as nine minutes
last. A step that passed is asked for again when one of the files that it depends on has changed, and not before;
`make gpu-verify PART=--list` says which are due now. Results are kept in `docs/gpu.json`.
"""


def write_page(state: State, page: Path = PAGE) -> None:
    page.write_text(page_of(state), encoding="utf-8")


def page_of(state: State) -> str:
    told = [HEAD, head_of(state)]
    for group, (title, says) in TITLES.items():
        several = [part for part in parts() if part.group == group]
        told += [f"## {title}\n\n{says}\n", table(several, state), *details(several, state)]
    return "\n".join(told).rstrip("\n") + "\n"


def head_of(state: State) -> str:
    """Which parts are stale, and which were never measured."""
    by_standing: dict[str, list[str]] = {}
    for part in parts():
        by_standing.setdefault(standing_of(part, state), []).append(part.name)
    lines = [
        f"**{name.capitalize()}** ({len(by_standing[name])} of {len(parts())} parts): {', '.join(by_standing[name])}."
        for name in (FAILED, STALE, NOT_MEASURED, PASSED)
        if name in by_standing
    ]
    return f"As of {date.today().isoformat()}:\n\n" + "\n\n".join(lines) + "\n"


def standing_of(part: Part, state: State) -> str:
    """Of a whole part: the worst of its steps; stale where some were measured and others, or as they were before."""
    found = {state.standing(part, step) for step in part.steps}
    if FAILED in found:
        return FAILED
    return found.pop() if len(found) == 1 else STALE


def table(several: list[Part], state: State) -> str:
    rows = ["| part | what it does | standing | steps passed | minutes | GPU | date | hash |", "|" + "---|" * 8]
    for part in several:
        results = [result for step in part.steps if (result := state.of(part, step)) is not None]
        passed = sum(state.standing(part, step) == PASSED for step in part.steps)
        machines = ", ".join(sorted({result.machine for result in results}))
        minutes = f"{sum(result.seconds for result in results) / 60:.1f}" if results else ""
        dates = sorted({result.date for result in results})
        day = "" if not dates else dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        rows.append(
            f"| {part.name} | {part.says} | {standing_of(part, state)} | {passed} of {len(part.steps)} | {minutes} | "
            f"{machines} | {day} | {hash_of_results(results)} |"
        )
    return "\n".join(rows) + "\n"


def hash_of_results(results: list[Result]) -> str:
    """Over all files that the steps depended on when they were done."""
    return hashlib.sha256("".join(each.hash for each in results).encode()).hexdigest()[:SHORT] if results else ""


def details(several: list[Part], state: State) -> list[str]:
    """What was measured, step by step, of parts of which something was."""
    told = []
    for part in several:
        lines = [line_of(part, step, state) for step in part.steps if state.of(part, step) is not None]
        if lines:
            missing = [step.name for step in part.steps if state.of(part, step) is None]
            not_run = [f"- not run: {', '.join(missing)}"] if missing else []
            told.append("\n".join([f"### {part.name}\n", *lines, *not_run]) + "\n")
    return told


def line_of(part: Part, step: Step, state: State) -> str:
    result = state.of(part, step)
    assert result is not None
    return f"- {step.name}: {state.standing(part, step)}; {result.told} ({result.seconds:g} s)"
