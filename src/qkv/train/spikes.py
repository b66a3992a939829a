"""Losses that leap up: when training goes back to a checkpoint.

A window of updates (`log_every` of them) has leapt up when its mean loss is more than `factor` times the median of the
windows before it. The remedy is PaLM's [chowdhery2022 §5.1]: go back to a checkpoint from before, and pass over the
batches that were read since, because it takes these batches and these weights together to make a spike.
"""

from dataclasses import dataclass
from statistics import median

REMEMBERED = 8  # windows whose median is the usual loss
LEAST = 4  # windows without which nothing is usual
ROLL_BACKS = 5  # after so many a run is stopped: it has another trouble


@dataclass(frozen=True)
class Spike:
    step: int  # the last of its window
    loss: float
    usual: float


class Spikes:
    """Told the loss of every window; `take` gives a spike once. With no factor nothing is one."""

    def __init__(self, factor: float | None) -> None:
        self.factor = factor
        self.losses: list[float] = []  # of the last windows, which a checkpoint holds
        self._seen: Spike | None = None

    def add(self, step: int, loss: float | None) -> None:
        if self.factor is None or loss is None:  # what is not finite was skipped, and is counted elsewhere
            return
        usual = median(self.losses) if len(self.losses) >= LEAST else None
        if usual is not None and usual > 0 and loss > self.factor * usual:
            self._seen = Spike(step, loss, usual)
        self.losses = [*self.losses, loss][-REMEMBERED:]

    def take(self) -> Spike | None:
        seen, self._seen = self._seen, None
        return seen
