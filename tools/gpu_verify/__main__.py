"""`make gpu-verify`: finds out on a GPU what is due, for nine minutes at most, and writes docs/gpu.md.

python -m tools.gpu_verify                     # whatever is due
python -m tools.gpu_verify train-language      # this part, or several
python -m tools.gpu_verify --list              # which parts there are, and what is due of them
python -m tools.gpu_verify --device cpu train-language   # small and on a CPU, to see that it runs; nothing is kept
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from qkv.errors import QkvError, nearest_or_all
from tools.gpu_verify.depends import ROOT
from tools.gpu_verify.page import standing_of, write_page
from tools.gpu_verify.parts import TRAININGS, Part, Step, parts
from tools.gpu_verify.state import State
from tools.gpu_verify.working import LEAST, Machine, do

MINUTES = 9.0
WORK = ROOT / "runs" / "gpu-verify"
JOBS = 4  # trainings side by side: each waits for its own start most of the time


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        return verify(options)
    except QkvError as error:
        print(f"gpu-verify: {error}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="gpu-verify", description=__doc__.splitlines()[0] if __doc__ else None)
    made.add_argument("parts", nargs="*", help="parts by their names; whatever is due, where none is named")
    made.add_argument("--list", action="store_true", help="tell the parts and what is due of them")
    made.add_argument("--page", action="store_true", help="write the page anew and measure nothing")
    made.add_argument("--minutes", type=float, default=MINUTES, help="for all of it")
    made.add_argument("--device", default="cuda", help="cuda; or cpu, small and with nothing kept")
    made.add_argument("--jobs", type=int, default=JOBS, help="trainings side by side")
    made.add_argument("--step", action="append", help="these steps of the parts alone, whether they are due or not")
    made.add_argument("--work", type=Path, default=WORK, help="folder for what is trained")
    return made


def verify(options: argparse.Namespace) -> int:
    state = State()
    wanted = [part_called(name) for name in options.parts] or list(parts())
    if options.list:
        for part in wanted:
            print(f"{part.name}: {standing_of(part, state)}, {len(state.due(part))} of {len(part.steps)} steps are due")
        return 0
    if options.page:
        write_page(state)
        return 0
    dry = options.device == "cpu"
    name = "a CPU" if dry else machine_name()
    machine = Machine([sys.executable], options.device, options.work, options.jobs)
    until = time.monotonic() + 60 * options.minutes
    failed = 0
    for part in wanted:
        steps = [step for step in part.steps if step.name in options.step] if options.step else state.due(part)
        if dry and part.group != TRAININGS:
            raise QkvError(f"{part.name} needs a GPU: trainings alone can be tried on a CPU.")
        if not steps or until - time.monotonic() < LEAST:
            continue
        print(f"{part.name}: {len(steps)} steps", flush=True)

        def note(step: Step, passed: bool, told: str, seconds: float, part: Part = part) -> None:
            nonlocal failed
            failed += not passed
            print(f"  {step.name}: {'passed' if passed else 'FAILED'}; {told} ({seconds:.0f} s)", flush=True)
            if not dry:
                state.put(part, step, passed, told, seconds, name)
                write_page(state)

        do(part, steps, machine, until, note)
    left = {part.name: len(state.due(part)) for part in wanted if not dry and state.due(part)}
    if left:
        told = ", ".join(f"{name} ({count})" for name, count in left.items())
        print(f"Still due: {told}. The same command goes on.")
    return 1 if failed else 0


def part_called(name: str) -> Part:
    known = {part.name: part for part in parts()}
    if name not in known:
        raise QkvError(f"There is no part called {name}: {nearest_or_all(name, list(known))}")
    return known[name]


def machine_name() -> str:
    import torch

    if not torch.cuda.is_available():
        raise QkvError("There is no GPU here: --list tells what is due, and --device cpu tries trainings on a CPU.")
    from importlib.metadata import version

    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {version('triton')}"


if __name__ == "__main__":
    sys.exit(main())
