"""What came of a comparison: every run's figures, and what can be read off them at equal time, operations or steps."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from qkv.errors import QkvError
from qkv.files import read_json, write_json
from qkv.train.by_context import ContextBits

FORMAT = "qkv-compare-1"
FILE = "compare.json"


@dataclass(frozen=True)
class Moment:
    """One evaluation of a run: what it had cost, and how good the model was."""

    step: int
    tokens: int
    flops: float
    seconds: float
    bits_per_byte: float


@dataclass(frozen=True)
class Run:
    """One seed of a variant."""

    seed: int
    parameters: int
    step: int
    tokens: int
    flops: float
    seconds: float
    bits_per_byte: float  # of the weights that were kept
    peak_memory: int | None  # bytes: measured on a GPU, elsewhere told from shapes; None: unknown
    moments: tuple[Moment, ...]
    contexts: tuple[ContextBits, ...]
    replayed: float | None = None  # share of steps that were one recorded launch; None: none were to be

    def at(self, cost: str, amount: float) -> float | None:
        """Bits per byte when so much of a cost was spent, on the line between two evaluations; None beyond them."""
        spent = [float(getattr(moment, cost)) for moment in self.moments]
        if not spent or not spent[0] <= amount <= spent[-1]:
            return None
        after = bisect_left(spent, amount)
        if after == 0 or spent[after] == amount:
            return self.moments[after].bits_per_byte
        share = (amount - spent[after - 1]) / (spent[after] - spent[after - 1])
        return (1 - share) * self.moments[after - 1].bits_per_byte + share * self.moments[after].bits_per_byte


@dataclass(frozen=True)
class Speed:
    """A training step on rows of one length."""

    length: int
    rows: int
    tokens_per_second: float | None  # None: it could not be taken
    peak_memory: int | None


@dataclass(frozen=True)
class Outcome:
    """A variant with all of its runs."""

    name: str
    setup: Mapping[str, Any]
    runs: tuple[Run, ...]
    speeds: tuple[Speed, ...] = ()

    def mean(self, figure: Callable[[Run], float | None]) -> float | None:
        """Over the seeds; None where one of them has no such figure."""
        found = [figure(run) for run in self.runs]
        return None if None in found else fmean(value for value in found if value is not None)

    def range(self, figure: Callable[[Run], float | None]) -> tuple[float, float] | None:
        found = [value for run in self.runs if (value := figure(run)) is not None]
        return (min(found), max(found)) if len(found) == len(self.runs) else None

    def end(self, cost: str) -> float:
        """What every seed has spent at least."""
        return min(float(getattr(run.moments[-1], cost)) for run in self.runs)


@dataclass(frozen=True)
class Comparison:
    """All variants, the first of which is what the others are measured against."""

    about: Mapping[str, Any]  # data, budget, length, device
    outcomes: tuple[Outcome, ...]

    def save(self, folder: Path) -> None:
        write_json(folder / FILE, {"format": FORMAT, **asdict(self)})

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """A comparison that was written before."""
        file = Path(folder) / FILE
        found = read_json(file)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise QkvError(f"The file {file} does not hold a comparison of the form {FORMAT}.")
        try:
            outcomes = tuple(
                Outcome(
                    each["name"],
                    each["setup"],
                    tuple(run_of(run) for run in each["runs"]),
                    tuple(Speed(**speed) for speed in each["speeds"]),
                )
                for each in found["outcomes"]
            )
            return cls(found["about"], outcomes)
        except (KeyError, TypeError) as error:
            raise QkvError(f"The file {file} does not hold a whole comparison ({error}): make it anew.") from error


def run_of(values: Mapping[str, Any]) -> Run:
    """A run as JSON holds it."""
    lists = {
        "moments": tuple(Moment(**each) for each in values["moments"]),
        "contexts": tuple(ContextBits(**each) for each in values["contexts"]),
    }
    return Run(**{**values, **lists})


def table(comparison: Comparison) -> str:
    """All variants side by side, as Markdown."""
    head = ("variant", "bits per byte", "seeds", "steps", "seconds", "PFLOP", "tokens/s", "peak memory, GB",
            "parameters")  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for each in comparison.outcomes:
        lines.append("| " + " | ".join((each.name, *_cells(each))) + " |")
    return "\n".join(lines) + "\n"


def _cells(outcome: Outcome) -> Sequence[str]:
    bits = outcome.range(lambda run: run.bits_per_byte)
    middle = outcome.mean(lambda run: run.bits_per_byte)
    memory = outcome.mean(lambda run: run.peak_memory)
    speed = outcome.mean(lambda run: run.tokens / run.seconds if run.seconds else None)
    flops = outcome.mean(lambda run: run.flops) or 0.0
    return (
        with_range(middle, bits),
        str(len(outcome.runs)),
        f"{outcome.mean(lambda run: run.step) or 0:,.0f}",
        f"{outcome.mean(lambda run: run.seconds) or 0:,.1f}",
        f"{flops / 1e15:.3g}",
        "unknown" if speed is None else f"{speed:,.0f}",
        "unknown" if memory is None else f"{memory / 1e9:.3g}",
        f"{outcome.runs[0].parameters:,}",
    )


def with_range(middle: float | None, ends: tuple[float, float] | None) -> str:
    """`1.234 (1.230 to 1.238)`: the mean and the range over seeds, where there are several."""
    if middle is None or ends is None:
        return "unknown"
    return f"{middle:.3f}" if ends[0] == ends[1] else f"{middle:.3f} ({ends[0]:.3f} to {ends[1]:.3f})"
