"""Where a run stands, and what came of it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass
class TrainState:
    """Where a run stands; saved with every checkpoint."""

    step: int = 0
    tokens: int = 0
    flops: float = 0.0
    best_score: float | None = None
    best_step: int | None = None
    best_figures: dict[str, float | None] | None = None
    evaluated_at: int | None = None
    evaluations_since_best: int = 0
    evaluations: int = 0  # shares of the budget that have been evaluated
    roll_backs: int = 0  # times that the run went back after its loss leapt up


@dataclass(frozen=True)
class TrainResult:
    """What came of a run. The model that was trained now holds the final weights, and so does the run folder."""

    folder: Path
    step: int
    tokens: int
    flops: float
    seconds: float  # spent on steps: GPU minutes are a sixtieth of it
    wall_seconds: float  # with evaluation and saving
    figures: dict[str, float | None]  # validation figures of the final weights; empty without `evaluate`
    weights: str  # which weights the final ones are
