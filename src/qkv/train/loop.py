"""The one loop that trains every family: it knows batches, an objective and an optimizer, and no model by name."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from signal import Signals
from typing import Any

import torch
from torch import nn

from qkv.errors import QkvError
from qkv.files import copy_into
from qkv.parts.attention.kernels.random_features import redraw_directions
from qkv.train.adjust import Adjust
from qkv.train.average import MovingAverage
from qkv.train.by_layer import LayerWatch
from qkv.train.compiling import compiled_blocks
from qkv.train.cost.foresight import beside, foreseen
from qkv.train.evaluation import Evaluate, finite_or_none
from qkv.train.final_weights import load_final_weights
from qkv.train.interrupts import Interrupted, StopSignals
from qkv.train.meter import Meter, Stopwatch
from qkv.train.objectives.loss import Objective
from qkv.train.prefetch import Batches, Prefetch
from qkv.train.provenance import describe, provenance
from qkv.train.random_state import preserved_random_state, random_state, seed_everything, set_random_state
from qkv.train.reporter import Reporter
from qkv.train.run_folder import RunFolder
from qkv.train.schedules import Schedule
from qkv.train.settings import TrainSettings
from qkv.train.state import TrainResult, TrainState
from qkv.train.step import FlopCount, Stepper

WHAT_HELPS = "A lower learning rate, a longer warm-up or precision float32 usually helps."


def train(
    model: nn.Module,
    objective: Objective,
    batches: Batches,
    settings: TrainSettings,
    run: RunFolder,
    *,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    evaluate: Evaluate | None = None,
    flops_per_token: FlopCount = 0.0,
    adjust: Adjust | None = None,
    reporter: Reporter | None = None,
) -> TrainResult:
    """Train until the budget is used up or validation stops improving, then leave the final weights in model and run.

    `evaluate` maps the model (in evaluation mode, without gradients, at the training precision) to named figures;
    `settings.watch` names the one that decides. `flops_per_token` is a number, or a function of the batch that counts
    its operations. `adjust` is called before each update. Raises `Interrupted` after SIGINT or SIGTERM with the state
    saved, and `QkvError` for what a person can mend: a full disk, a run that is in the way, a loss that stays infinite.
    """
    with reporter or Reporter() as shown:
        return _Loop(
            model, objective, batches, settings, run, optimizer, schedule, evaluate, flops_per_token, adjust, shown
        ).run_to_end()


class _Loop:
    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        batches: Batches,
        settings: TrainSettings,
        run: RunFolder,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        evaluate: Evaluate | None,
        flops_per_token: FlopCount,
        adjust: Adjust | None,
        reporter: Reporter,
    ) -> None:
        if settings.flops is not None and flops_per_token == 0:
            raise QkvError("A budget of FLOPs needs a training that counts them: give steps or minutes here.")
        self.watch = LayerWatch(model) if settings.gradient_norms else None
        self.device = settings.torch_device()
        self.model = model.to(self.device)
        self.settings, self.run, self.optimizer = settings, run, optimizer
        self.schedule, self.evaluate, self.adjust, self.reporter = schedule, evaluate, adjust, reporter
        self.stepper = Stepper(model, objective, optimizer, settings, flops_per_token)
        self.counted: str = getattr(objective, "counts", "tokens")
        run.begin(
            {
                "train": asdict(settings),
                "objective": describe(objective),
                "optimizer": describe(optimizer),
                "schedule": describe(schedule),
            },
            provenance(self.device),
        )
        self.moving = None if settings.ema is None else MovingAverage(model, settings.ema)
        self.state = TrainState()
        self.stopwatch = Stopwatch(self.device)
        self.meter = Meter(self.device, self.stopwatch)
        self.saved_at: int | None = None
        seed_everything(settings.seed)
        if run.resumes:
            self._resume(batches)
        self.batches = Prefetch(batches, self.device)
        self.model.train()
        if not self.state.step:
            self._foretell(objective)

    def _foretell(self, objective: Objective) -> None:
        """Record what steps should take, where the device was measured."""
        with self.stopwatch.paused():
            cost = foreseen(self.model, objective, self.optimizer, self.batches.next, self.settings, self.device)
        if cost is not None:
            self.run.record({"kind": "prediction", "step": 0, **cost.record()})

    def _resume(self, batches: Batches) -> None:
        checkpoint = self.run.checkpoints.read_newest(self.reporter.say)
        self.run.forget_after(checkpoint.step if checkpoint else 0)
        if checkpoint is None:
            self.reporter.say(f"{self.run.folder} has no checkpoint yet; starting from the first step.")
            return
        checkpoint.restore_model(self.model)
        checkpoint.restore_optimizer(self.model, self.optimizer)
        if self.moving is not None:
            copy_into(self.moving.tensors, checkpoint.average or {}, checkpoint.folder / "average.safetensors")
        state = checkpoint.state
        self.state = TrainState(**state["train"])
        self.stopwatch = Stopwatch(self.device, state["seconds"], state["paused_seconds"])
        self.meter = Meter(self.device, self.stopwatch)
        self.meter.load_state_dict(state["meter"])
        batches.load_state_dict(state["data"])
        self.saved_at = checkpoint.step
        set_random_state(checkpoint.random)
        self.reporter.say(f"Resuming after step {checkpoint.step:,}.")

    def run_to_end(self) -> TrainResult:
        compiled = compiled_blocks(self.model) if self.settings.compile else nullcontext()
        with StopSignals() as signals, compiled:
            while True:
                improved = False
                if self._evaluation_is_due() and not self._evaluated() and not signals.received:
                    improved = self._evaluate() and self.settings.average == 0  # an average needs no best checkpoint
                if improved or (self._due(self.settings.save_every) and self.saved_at != self.state.step):
                    self._save()
                if signals.received:
                    self._stop(signals.received)
                if self._is_over():
                    return self._finish()
                self._step()

    def _due(self, every: int | None) -> bool:
        return every is not None and self.state.step > 0 and self.state.step % every == 0

    def _evaluation_is_due(self) -> bool:
        at_share = self.settings.evaluations_due(self._progress()) > self.state.evaluations
        return at_share or self._due(self.settings.evaluate_every)

    def _evaluated(self) -> bool:
        return self.evaluate is None or self.state.evaluated_at == self.state.step

    def _is_over(self) -> bool:
        patience = self.settings.patience
        impatient = patience is not None and self.state.evaluations_since_best >= patience
        return impatient or self._progress() >= 1

    def _progress(self) -> float:
        return self.settings.progress(self.state.step, self.stopwatch.seconds, self.state.flops)

    def _step(self) -> None:
        progress = self._progress()
        rate = self.stepper.set_rate(self.schedule(self.state.step + 1, progress))
        redraw_directions(self.model, self.state.step)
        if self.adjust is not None:
            self.adjust(self.model, self.state.step + 1, progress)
        shown = self.state.step == 0 or (self.state.step + 1) % self.settings.log_every == 0
        watch = self.watch if shown else None
        update = self.stepper.update(self.batches, watch)
        self.state.step += 1
        if watch is not None:
            self.run.record({"kind": "layers", "step": self.state.step, **watch.record()})
        self.state.tokens += update.count
        self.state.flops += update.flops
        if self.moving is not None:
            self.moving.update()
        self.meter.add(update)
        self._publish(self.meter.poll())
        if self.state.step % self.settings.log_every == 0:
            self._close_window(rate)

    def _close_window(self, rate: float) -> None:
        state = self.state
        record = {"kind": "train", "step": state.step, "tokens": state.tokens, "flops": state.flops}
        self._publish(self.meter.close_window({**record, "counted": self.counted, "learning_rate": rate}))

    def _publish(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            self.run.record(record)
            spent = (record["step"], record["seconds"], record["flops"])
            self.reporter.train(record, self.settings.progress(*spent))
        if self.meter.longest_skip >= self.settings.tolerate:
            raise QkvError(
                f"Training stopped near step {self.state.step}: loss or gradient was not finite in "
                f"{self.meter.longest_skip} updates in a row. {WHAT_HELPS}"
            )

    def _evaluate(self) -> bool:
        """Record the validation figures; says whether they are the best so far."""
        figures = self._figures(self.moving.inside() if self.moving is not None else nullcontext())
        watched = self.settings.watch
        if watched not in figures:
            raise QkvError(f"Evaluation gave {', '.join(figures)}, but the setting watch asks for {watched}.")
        state = self.state
        improved = self.settings.improves(figures[watched], state.best_score)
        if improved:
            state.best_score, state.best_step = figures[watched], state.step
            state.best_figures = finite_or_none(figures)
        state.evaluations_since_best = 0 if improved else state.evaluations_since_best + 1
        state.evaluated_at, state.evaluations = state.step, self.settings.evaluations_due(self._progress())
        self._record("evaluation", figures, best=improved)
        self.reporter.evaluation(state.step, figures, improved)
        return improved

    def _figures(self, weights: Any) -> dict[str, float]:
        """Evaluation leaves no trace: not in the random numbers, the weights, the mode, the training time."""
        assert self.evaluate is not None
        self._publish(self.meter.collect())
        uncompiled = torch.compiler.set_stance("force_eager")
        with self.stopwatch.paused(), preserved_random_state(), torch.no_grad(), weights, uncompiled:
            self.model.eval()
            with self.settings.autocast(self.device):
                figures = {name: float(value) for name, value in self.evaluate(self.model).items()}
            self.model.train()
        return figures

    def _record(self, kind: str, figures: Mapping[str, float | None], **more: Any) -> None:
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

    def _save(self) -> Path:
        self._publish(self.meter.collect())
        with self.stopwatch.paused():
            checkpoints = self.run.checkpoints
            path = checkpoints.save(
                self.state.step,
                model=self.model,
                optimizer=self.optimizer,
                average=self.moving.tensors if self.moving is not None else None,
                random=random_state(),
                state={
                    "train": asdict(self.state),
                    "seconds": self.stopwatch.seconds,
                    "paused_seconds": self.stopwatch.paused_seconds,
                    "meter": self.meter.state_dict(),
                    "data": self.batches.position,
                },
            )
            checkpoints.retain(max(self.settings.keep, self.settings.average), self.state.best_step)
        self.saved_at = self.state.step
        return path

    def _stop(self, received: Signals) -> None:
        """Save, leave a usable model, say how to go on."""
        path = self._save() if self.saved_at != self.state.step else self.run.checkpoints.path(self.state.step)
        with self.moving.inside() if self.moving is not None else nullcontext():
            self.run.write_model(self.model)
        message = (
            f"Stopped by {received.name} after step {self.state.step:,}; all is saved in {path}. "
            f"To go on, {self.reporter.to_go_on}."
        )
        self.reporter.say(message)
        raise Interrupted(message, received)

    def _finish(self) -> TrainResult:
        """Complete the records, save, choose the final weights and write the model folder."""
        self._close_window(self.optimizer.param_groups[0]["lr"])
        self._publish(self.meter.collect())
        fresh = not self._evaluated()
        if fresh:
            self._evaluate()
        if self.state.best_step is None and not self.meter.ends_finite:  # there are no better weights than these
            raise QkvError(f"Training diverged: the loss of step {self.state.step} is not finite. {WHAT_HELPS}")
        if fresh or self.saved_at != self.state.step:
            self._save()
        with self.stopwatch.paused():
            weights = load_final_weights(
                self.model, self.run.checkpoints, self.settings, self.state, self.moving, self.reporter.say
            )
            self.run.write_model(self.model)
        averaged = self.settings.average > 0 and self.evaluate is not None
        figures = finite_or_none(self._figures(nullcontext())) if averaged else self.state.best_figures or {}
        step_seconds, peak = self.meter.step_seconds, self.stopwatch.peak_memory
        self._record("final", figures, weights=weights, step_seconds=step_seconds, peak_memory=peak)
        self.reporter.say(f"Finished after step {self.state.step:,}; {self.run.folder} holds the {weights}.")
        for foretold in [record for record in self.run.records() if record["kind"] == "prediction"][-1:]:
            self.reporter.say(beside(foretold, step_seconds, peak, self.device.type == "cuda"))
        self.model.eval()
        seconds = self.stopwatch.seconds
        return TrainResult(
            folder=self.run.folder,
            step=self.state.step,
            tokens=self.state.tokens,
            flops=self.state.flops,
            seconds=seconds,
            wall_seconds=seconds + self.stopwatch.paused_seconds,
            figures=figures,
            weights=weights,
        )
