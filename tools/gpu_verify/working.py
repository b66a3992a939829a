"""How steps are done: files of tests and lessons side by side, works of a benchmark one after the other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tools.gpu_verify.benchmarks import beside_the_last, results_file, rows_in
from tools.gpu_verify.compare import likeness
from tools.gpu_verify.depends import ROOT
from tools.gpu_verify.lessons import Lesson, lesson_called
from tools.gpu_verify.materials import write_materials
from tools.gpu_verify.parts import BENCHMARKS, TESTS, Part, Step, script_of

LEAST = 20.0  # seconds, without which no step is begun
LONGEST = 300.0  # of one command
ENOUGH = 420.0  # seconds: what is not done in so many will not be done another time
KEPT = 300  # signs of what a command said that failed
COUNTED = re.compile(r"(\d+) (passed|failed|skipped|errors?)")

Answer = tuple[bool, str] | None  # whether it passed and what is told of it; None: there was no time
Note = Callable[[Step, bool, str, float], None]  # a step, whether it passed, what is told of it, seconds


class Ended(NamedTuple):
    code: int  # below 0: by a signal
    out: str
    err: str


class Machine(NamedTuple):
    """Where it is done."""

    python: list[str]
    device: str
    work: Path  # for what is trained
    jobs: int  # commands side by side


def do(part: Part, steps: Sequence[Step], machine: Machine, until: float, note: Note) -> None:
    """As many steps as there is time for; each is noted as soon as it is done."""
    if part.group == BENCHMARKS:  # one after the other: they measure
        side_by_side(steps, 1, until, note, lambda step: run_benchmark(part, step, machine, until))
    elif part.group == TESTS:  # each in a process of its own, which a program on the GPU may end
        side_by_side(steps, machine.jobs, until, note, lambda step: run_tests(step, machine, until))
    else:
        prepare([lesson_called(step.name) for step in steps], machine, until)
        side_by_side(
            steps, machine.jobs, until, note, lambda step: run_lesson(lesson_called(step.name), machine, until)
        )


def side_by_side(steps: Sequence[Step], jobs: int, until: float, note: Note, one: Callable[[Step], Answer]) -> None:
    lock = threading.Lock()

    def work(step: Step) -> None:
        began = time.monotonic()
        if until - began < LEAST:
            return
        answer = one(step)
        spent = time.monotonic() - began
        if answer is None and spent > ENOUGH:
            answer = False, f"not done in {spent / 60:.0f} minutes"
        if answer is not None:
            with lock:
                note(step, *answer, spent)

    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(work, step) for step in steps]:
            done.result()


# ------------------------------------------------------------------------------------------------- tests


def run_tests(step: Step, machine: Machine, until: float) -> Answer:
    ended = ran([*machine.python, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", step.name], left(until))
    if ended.code == TIMED_OUT:
        return None
    counts = {kind: int(many) for many, kind in COUNTED.findall(ended.out.rstrip().rpartition("\n")[2])}
    told = ", ".join(f"{many} {kind}" for kind, many in counts.items())
    if ended.code != 0 or not counts.get("passed"):
        return False, f"{told or f'ended with {ended.code}'}: {failure(ended)}"
    return True, told


# ------------------------------------------------------------------------------------------------- lessons


def prepare(several: Sequence[Lesson], machine: Machine, until: float) -> None:
    """What lessons need: pictures and texts, and models that others have trained."""
    for pictures in {48 if machine.device == "cpu" else each.pictures for each in several}:
        write_materials(machine.work / "data", pictures)
    for name in dict.fromkeys(each.after for each in several if each.after):
        if not (machine.work / name / "config.json").exists():  # where it fails, what comes after says so
            training, *_ = lesson_called(name).commands(machine.python, machine.work, machine.device)
            ran(training, min(LONGEST, left(until)))


def run_lesson(lesson: Lesson, machine: Machine, until: float) -> Answer:
    training, there, here = lesson.commands(machine.python, machine.work, machine.device)
    folder = machine.work / lesson.name
    shutil.rmtree(folder, ignore_errors=True)
    answers = []
    for command in (training, there, here) if lesson.ask else (training,):
        rest = left(until)
        ended = ran(command, min(LONGEST, rest))
        if ended.code == TIMED_OUT and rest < LONGEST:
            return None
        if ended.code != 0:
            return False, f"qkv {words_of(command)} ended with {ended.code}: {failure(ended)}"
        answers.append(ended.out)
    if not lesson.ask:
        shutil.rmtree(folder, ignore_errors=True)  # some are large
        return True, "exit code 0"
    like = likeness(answers[1], answers[2])
    return like.is_enough(lesson.numbers), str(like)


def words_of(command: Sequence[str]) -> str:
    """The verb, and for what."""
    own = command[command.index("-m") + 2 :]
    return " ".join(own[:2]) if own and own[0] == "train" else " ".join(own[:1])


# ------------------------------------------------------------------------------------------------- benchmarks


def run_benchmark(part: Part, step: Step, machine: Machine, until: float) -> Answer:
    script = script_of(part)
    before = rows_in(results_file(script))
    ended = ran(benchmark_command(script, step, machine, left(until)), left(until))
    if ended.code == TIMED_OUT:
        return None
    if ended.code != 0:
        return False, f"ended with {ended.code}: {failure(ended)}"
    return beside_the_last(before, rows_in(results_file(script)))


def benchmark_command(script: Path, step: Step, machine: Machine, seconds: float) -> list[str]:
    own = [] if step.name == "all" else ["--only", step.name, "--seconds", str(int(max(LEAST, seconds - LEAST)))]
    return [*machine.python, str(script.relative_to(ROOT)), *own]


# ------------------------------------------------------------------------------------------------- commands

TIMED_OUT = 124


def left(until: float) -> float:
    return until - time.monotonic()


def ran(command: Sequence[str], seconds: float) -> Ended:
    """A command in the root of the repository; one that takes too long is ended with all that it has started."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "PYTHONUNBUFFERED": "1"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, encoding="utf-8", errors="replace",
            timeout=max(1.0, seconds),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Ended(TIMED_OUT, "", "no time left")
    return Ended(done.returncode, done.stdout, done.stderr)


def failure(ended: Ended) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in (ended.err or ended.out).splitlines() if line.strip()]
    return " ".join(told(lines))[:KEPT] if lines else "it said nothing"


def told(lines: Sequence[str]) -> Iterator[str]:
    """The last line, and before it the one that names an error where the last does not."""
    errors = [line for line in lines[:-1] if "Error" in line or "terminate called" in line]
    if errors and "Error" not in lines[-1]:
        yield errors[-1] + ";"
    yield lines[-1]
