"""What a person sees while training: one living line in a terminal, plain lines in a file or a pipe."""

import math
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from qkv.train.origin import current_origin
from qkv.train.watchers import Watcher

TO_GO_ON = "give the same command with --resume (in Python, resume=True)"
TOLD_WAIT = 0.1  # share of the time from which on waiting for data is worth a word


class Reporter:
    """Writes to standard error, so that standard output stays free for results."""

    def __init__(
        self, console: Console | None = None, to_go_on: str = TO_GO_ON, watchers: Sequence[Watcher] | None = None
    ) -> None:
        """`to_go_on` says what to do after a stop; `watchers` are told every record too: by default those that the
        command asked for."""
        self.console = console or Console(stderr=True, quiet=os.environ.get("RANK", "0") != "0")  # one rank speaks
        self.watchers = current_origin().watchers if watchers is None else watchers
        self.to_go_on = to_go_on
        self.left: float | None = None  # seconds of training until the budget is used up
        self._stands: list[tuple[float, float]] = []  # seconds and progress of each record
        self._bar = Progress(
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.description}", markup=False),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task("preparing the first step", total=1.0)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None) -> None:
        self._bar.stop()

    def train(self, record: Mapping[str, Any], progress: float) -> None:
        """Loss, speed, learning rate and time left, after a window of steps."""
        self.left = self._left(record["seconds"], progress)
        line = "  ".join(
            [
                f"step {record['step']:,}",
                f"loss {figure(record['loss'])}",
                f"{short(record['tokens_per_second'])} {record.get('counted', 'tokens')}/s",
                f"rate {record['learning_rate']:.2e}",
                f"{duration(self.left)} left",
            ]
        )
        if record.get("flops_utilisation") is not None:
            line += f"  {record['flops_utilisation']:.0%} of the device"
        if record.get("data_wait_share", 0.0) >= TOLD_WAIT:
            line += f"  {record['data_wait_share']:.0%} waiting for data"
        if record["skipped"]:
            line += f"  {record['skipped']} skipped"
        if self.console.is_terminal:
            self._bar.update(self._task, completed=progress, description=line)
        else:
            self.say(line)

    def _left(self, seconds: float, progress: float) -> float | None:
        """At the pace since half of the way: the first updates are slow, and others may begin or cease to use cores."""
        halfway = (each for each in self._stands if progress / 2 <= each[1] < progress)
        since, done = next(halfway, (0.0, 0.0))
        self._stands.append((seconds, progress))
        return (seconds - since) * (1 - progress) / (progress - done) if progress > 0 else None

    def evaluation(self, step: int, figures: Mapping[str, float], improved: bool) -> None:
        parts = "  ".join(f"{name} {figure(value)}" for name, value in figures.items())
        self.say(f"step {step:,}  validation: {parts}{'  (best so far)' if improved else ''}")

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def figure(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def short(number: float | None) -> str:
    """12,345 as 12.3k."""
    if number is None:
        return "?"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return f"{number:.0f}"


def duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
