"""What a long run found, as a page."""

from __future__ import annotations

import platform
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from tests.fuzz.reading import MOST_MEMORY, MOST_SECONDS, MOST_WAITING
from tests.fuzz.worker import MORE_MEMORY, Stretch

LIBRARIES = ("torch", "safetensors", "tokenizers", "numpy", "pillow", "pyarrow", "soundfile")


def totals(stretches: Sequence[Stretch]) -> dict[str, Any]:
    """The same as numbers, for a file of JSON."""
    kinds: dict[str, Counter[str]] = {}
    seconds: Counter[str] = Counter()
    slowest: dict[str, float] = {}
    for stretch in stretches:
        for kind, outcomes in stretch.outcomes.items():
            kinds.setdefault(kind, Counter()).update(outcomes)
            seconds[kind] += stretch.seconds[kind]
            slowest[kind] = max(slowest.get(kind, 0.0), stretch.slowest[kind])
    findings = [each for stretch in stretches for each in stretch.findings]
    return {
        "inputs": sum(sum(outcomes.values()) for outcomes in kinds.values()),
        "kinds": {kind: {**kinds[kind], "seconds": seconds[kind], "slowest": slowest[kind]} for kind in sorted(kinds)},
        "findings": findings,
        "peak_memory": max((stretch.peak_memory for stretch in stretches), default=0),
        "most_growth": max((stretch.peak_memory - stretch.begun_with for stretch in stretches), default=0),
        "kernel_filter": all(stretch.kernel_filter for stretch in stretches),
    }


def page(stretches: Sequence[Stretch], command: str) -> str:
    told = totals(stretches)
    rows = [
        f"| {kind} | {sum(count for name, count in one.items() if name in ('loaded', 'refused', 'finding')):,} "
        f"| {one.get('loaded', 0):,} | {one.get('refused', 0):,} | {one.get('finding', 0):,} "
        f"| {one['seconds']:.0f} | {1000 * one['slowest']:.0f} |"
        for kind, one in told["kinds"].items()
    ]
    by_kind = Counter((each["target"], each["kind"], each["where"]) for each in told["findings"])
    listed = [f"- {count} × {kind} in {target} ({where})" for (target, kind, where), count in by_kind.most_common()]
    native = (
        "Beside it a filter in the kernel (seccomp) ended any process that made a socket or another process, whatever "
        "the language it is written in."
        if told["kernel_filter"]
        else "There was no filter in the kernel beside it."
    )
    versions = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return f"""# Damaged files

*Written by `{command}`.* `make fuzz` goes on where it was stopped, and reads those stretches of inputs again that had
findings: what is told here of the others may be of the code as it was before those were mended. What was found so far
is kept in `tests/fuzz/test_found*.py`.

**{told["inputs"]:,} damaged inputs, {len(told["findings"])} findings.** Each is a small valid folder or file of the
kinds below with something changed: bits, lengths, offsets, shapes, names, types, nesting, doubled keys, numbers that
are none, bytes that are no text, files that are folders, pipes or links. Reading one must give what it says, or a
`QkvError` in one sentence. Anything else is a finding: another exception, a crash, more than {MOST_SECONDS:g} s of work
or {MOST_WAITING:g} s of waiting, more than {MOST_MEMORY >> 20} MiB of memory for one input (a process that reads may
take {MORE_MEMORY >> 30} GiB). Models of texts, translators and ViTs that
load are then used once, and so are tokenizers.

While an input was read, an audit hook of the interpreter stood ready to stop the execution or compilation of code, any
import, socket, process, pickle, foreign library and any change of files outside the folder of the test.
{native}

| kind | inputs | loaded | refused | findings | seconds of work | slowest (ms) |
|---|---:|---:|---:|---:|---:|---:|
{chr(10).join(rows)}

The processes took at most {told["peak_memory"] >> 20} MiB, {told["most_growth"] >> 20} MiB of which came while inputs
were read.

{"Findings:" + chr(10) + chr(10) + chr(10).join(listed) if listed else "There were no findings."}

Python {platform.python_version()} on {sys.platform}, {versions}.
"""
