"""The line of a training that says how it learns and names the options for another choice."""

from typing import TYPE_CHECKING

from qkv.cli.train_options import RunOptions, warmup_of

if TYPE_CHECKING:
    from qkv.train.schedules import Schedule
    from qkv.train.settings import TrainSettings


def learning_line(run: RunOptions, batch: str, rate: float, schedule: "Schedule", settings: "TrainSettings") -> str:
    """The optimizer, its rate, and which weights are kept; `rate` is for AdamW."""
    from qkv.train.optimizers import find_optimizer

    rate = run.learning_rate or rate * find_optimizer(run.optimizer).share
    means = f"the mean of the last {run.average} checkpoints" if run.average > 1 else "the last weights"
    stay = means if settings.average else "the best weights" if run.ema is None else "a moving average"
    return (
        f"Learning: batches of {batch} by {run.optimizer}, at a rate of {rate:g} that {_course(run, schedule)}; "
        f"{stay} stay (--batch-rows, --optimizer, --learning-rate, --warmup, --schedule, --average, --ema)."
    )


def _course(run: RunOptions, schedule: "Schedule") -> str:
    from qkv.train.schedules import TriStage

    if run.schedule is not None:
        return f"follows the schedule {run.schedule}"
    if not isinstance(schedule, TriStage):
        return f"rises over {counted(warmup_of(run), 'update')} and then falls to 0"
    steps = [f"rises over the first {schedule.rise:.0%} of the run"] if schedule.rise else []
    if schedule.hold:
        steps.append(f"stays until {schedule.rise + schedule.hold:.0%} of the run")
    return f"{', '.join(steps)} and then falls to 0"


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
