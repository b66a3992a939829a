"""What was verified when, on which GPU: a file of JSON beside the page."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from qkv.files import read_json, write_json
from tools.gpu_verify.depends import ROOT
from tools.gpu_verify.parts import Part, Step

STATE = ROOT / "docs" / "gpu.json"
PASSED, FAILED, STALE, NOT_MEASURED = "passed", "failed", "stale", "not measured"


@dataclass(frozen=True)
class Result:
    """What came of a step."""

    hash: str
    passed: bool
    told: str
    seconds: float
    date: str = ""
    machine: str = ""  # the GPU, and the versions of what drives it


class State:
    """All results so far; one is on the disk as soon as it is there, so that a stopped part goes on where it was."""

    def __init__(self, file: Path = STATE) -> None:
        self.file = file
        found: Any = read_json(file) if file.exists() else {}
        self.results = {key: Result(**value) for key, value in found.items()}

    def put(self, part: Part, step: Step, passed: bool, told: str, seconds: float, machine: str) -> None:
        today = date.today().isoformat()
        self.results[part.key(step)] = Result(step.hash, passed, told, round(seconds, 1), today, machine)
        write_json(self.file, {key: asdict(self.results[key]) for key in sorted(self.results)})

    def of(self, part: Part, step: Step) -> Result | None:
        return self.results.get(part.key(step))

    def standing(self, part: Part, step: Step) -> str:
        result = self.of(part, step)
        if result is None:
            return NOT_MEASURED
        if result.hash != step.hash:
            return STALE
        return PASSED if result.passed else FAILED

    def due(self, part: Part) -> list[Step]:
        """What is to be done of a part: all that has not passed as it is now, what has failed last."""
        due = [step for step in part.steps if self.standing(part, step) != PASSED]
        return sorted(due, key=lambda step: self.standing(part, step) == FAILED)
