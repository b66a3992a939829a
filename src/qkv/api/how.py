"""What a person chooses of every training, whatever is learned."""

from dataclasses import dataclass

from qkv.api.runs import MakeOptimizer
from qkv.data.plan import Batching, RowCount
from qkv.train.reporter import Reporter
from qkv.train.schedules import Linear, Schedule
from qkv.train.settings import TrainSettings

SETTINGS = TrainSettings(steps=2000, evaluate_every=200, save_every=200, keep=2)


@dataclass(frozen=True, kw_only=True)
class Training:
    """How long, how fast, on how much at a time, and what is held out."""

    batching: Batching = RowCount(64)  # noqa: RUF009 (frozen)
    settings: TrainSettings = SETTINGS
    optimizer: MakeOptimizer | None = None  # None: what suits what is learned
    schedule: Schedule = Linear(warmup=200)  # noqa: RUF009 (frozen)
    hold_out: float = 0.05  # share to validate on where nothing is given for it
    reporter: Reporter | None = None
    resume: bool = False
    overwrite: bool = False
