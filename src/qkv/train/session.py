"""A run in progress: what trains, where it stands, and how it is written down."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from qkv.errors import QkvError
from qkv.train.average import MovingAverage
from qkv.train.evaluation import finite_or_none
from qkv.train.meter import Meter, Stopwatch
from qkv.train.not_finite import FOLDER, Window, keep_batches
from qkv.train.parallel.team import Team
from qkv.train.prefetch import Batches, Prefetch
from qkv.train.reporter import Reporter
from qkv.train.run_folder import RunFolder
from qkv.train.settings import TrainSettings
from qkv.train.spikes import Spikes
from qkv.train.state import TrainState
from qkv.train.utilisation import peak_of

WINDOWS = 4  # two may be on their way to the host
WHAT_HELPS = "A lower learning rate, a longer warm-up or precision float32 usually helps."


class Session:
    """All that a checkpoint holds, and the folder and the person that are told of it."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batches: Batches,
        settings: TrainSettings,
        run: RunFolder,
        reporter: Reporter,
        counted: str,
        team: Team,
    ) -> None:
        self.device = settings.torch_device()
        self.model, self.optimizer, self.settings = model, optimizer, settings
        self.run, self.reporter, self.team = run, reporter, team
        self.counted = counted  # what the objective counts: tokens, texts
        self.moving = None if settings.ema is None else MovingAverage(model, settings.ema)
        team.share(batches)
        self.batches = Prefetch(batches, self.device, team.part)
        self.state = TrainState()
        self.stopwatch = Stopwatch(self.device)
        peak = peak_of(self.device, settings.precision)
        self.meter = Meter(self.device, self.stopwatch, None if peak is None else peak * team.world.size)
        self.saved_at: int | None = None  # the step of the newest checkpoint
        self.windows: list[Window] = [(0, self.batches.position)]  # the last few, to find a batch again
        self.spikes = Spikes(settings.roll_back)

    def progress(self) -> float:
        """The share of the budget that is used, by the clock of the first rank."""
        return self.settings.progress(self.state.step, self.team.seconds, self.state.flops)

    def close_window(self, rate: float) -> None:
        state = self.state
        record = {"kind": "train", "step": state.step, "tokens": state.tokens, "flops": state.flops}
        record |= {"counted": self.counted, "learning_rate": rate, "data_wait": round(self.batches.take_waited(), 6)}
        if sources := self.batches.position.get("sources"):  # of a mixture
            record["read"] = {source["name"]: source["tokens"] for source in sources}
        self.publish(self.meter.close_window(record))
        self.windows = [*self.windows, (state.step, self.batches.position)][-WINDOWS:]

    def publish(self, records: list[dict[str, Any]]) -> None:
        """Write down and show what the meter read back; too many skipped updates end the run."""
        for record in records:
            self.run.record(record)
            spent = (record["step"], record["seconds"], record["flops"])
            self.reporter.train(record, self.settings.progress(*spent))
            self.spikes.add(record["step"], record["loss"])
        if self.meter.longest_skip >= self.settings.tolerate:
            raise QkvError(
                f"Training stopped near step {self.state.step}: loss or gradient was not finite in "
                f"{self.meter.longest_skip} updates in a row{self.batch_kept()}. {WHAT_HELPS}"
            )

    def batch_kept(self) -> str:
        """Keep the batches of the last update that was skipped, and say where."""
        step = self.meter.skipped_at
        started = [window for window in self.windows if step is not None and window[0] < step]
        if step is None or not started:
            return ""
        folder = self.run.folder / FOLDER
        if self.team.world.size > 1:
            folder /= f"rank-{self.team.world.rank:05d}"  # each has rows of its own
        keep_batches(folder, step, started[-1], self.batches, self.settings.accumulate)
        return f"; the batch of step {step} is kept in {folder}"

    def record(self, kind: str, figures: Mapping[str, float | None], **more: Any) -> None:
        finite = finite_or_none({name: value for name, value in figures.items() if value is not None})
        self.run.record(
            {
                "kind": kind,
                "step": self.state.step,
                "tokens": self.state.tokens,
                "flops": self.state.flops,
                "seconds": round(self.stopwatch.seconds, 3),
                "wall_seconds": round(self.stopwatch.seconds + self.stopwatch.paused_seconds, 3),
                "figures": finite,
                **more,
            }
        )
