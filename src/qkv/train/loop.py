"""The one loop that trains every family: it knows batches, an objective and an optimizer, and no model by name."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from signal import Signals

import torch
from torch import nn

from qkv.errors import QkvError
from qkv.parts.attention.kernels.random_features import RandomDirections, redraw_directions
from qkv.train.adjust import Adjust
from qkv.train.by_layer import LayerWatch
from qkv.train.compiling import compiled_blocks
from qkv.train.cost.foresight import beside, foreseen
from qkv.train.cost.prediction import Cost
from qkv.train.deterministic import deterministic_kernels, fix_workspace
from qkv.train.evaluating import evaluate_now, figures_of
from qkv.train.evaluation import Evaluate, finite_or_none
from qkv.train.final_weights import load_final_weights
from qkv.train.float8.products import check_float8, float8_products
from qkv.train.interrupts import Interrupted, StopSignals
from qkv.train.objectives.loss import Objective
from qkv.train.parallel.recompute import recompute_blocks
from qkv.train.parallel.team import Team
from qkv.train.prefetch import Batches
from qkv.train.provenance import describe, provenance
from qkv.train.random_state import seed_everything
from qkv.train.reporter import Reporter
from qkv.train.run_folder import RunFolder
from qkv.train.saving import resume, roll_back, save
from qkv.train.schedules import Schedule
from qkv.train.session import WHAT_HELPS, Session
from qkv.train.settings import TrainSettings
from qkv.train.state import TrainResult
from qkv.train.step import FlopCount, Stepper
from qkv.train.streamed import streamed_stacks


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
    foretold: Cost | None = None,
    adjust: Adjust | None = None,
    reporter: Reporter | None = None,
    team: Team | None = None,
) -> TrainResult:
    """Train until the budget is used up or validation stops improving, then leave the final weights in model and run.

    `evaluate` maps the model (in evaluation mode, without gradients, at the training precision) to named figures;
    `settings.watch` names the one that decides. `flops_per_token` is a number, or a function of the batch that counts
    its operations. `foretold` is what a step will cost, where that is known; else it is told from shapes. `adjust` is
    called before each update. `team` are the ranks that the model was shared out among, and all of them call this
    together. Raises `Interrupted` after SIGINT or SIGTERM with the state saved, and `QkvError` for what a person can
    mend: a full disk, a run that is in the way, a loss that stays infinite.
    """
    if settings.flops is not None and flops_per_token == 0:
        raise QkvError("A budget of FLOPs needs a training that counts them: give steps or minutes here.")
    team = team or Team()
    team.check_optimizer(optimizer)
    fix_workspace(settings.deterministic)
    settings = settings.on(settings.torch_device())
    if settings.precision == "float8":
        check_float8(settings.torch_device(), team.world.size)
    with reporter or Reporter() as shown, run.watched_by(shown.watchers):
        watch = LayerWatch(model) if settings.gradient_norms else None
        model.to(settings.torch_device())
        adjusted = adjust is not None and not getattr(adjust, "shows", False)
        stepper = Stepper(model, objective, optimizer, settings, flops_per_token, shown.say, team, adjusted=adjusted)
        run.begin(
            {
                "train": asdict(settings),
                "objective": describe(objective),
                "optimizer": describe(optimizer),
                "schedule": describe(schedule),
            },
            provenance(settings.torch_device(), None if run.resumes else team.fingerprint(model), str(team)),
        )
        session = Session(model, optimizer, batches, settings, run, shown, getattr(objective, "counts", "tokens"), team)
        seed_everything(settings.seed + team.stream)
        run.checkpoints.join(team.world, team.stream)
        if run.resumes:
            resume(session)
        model.train()
        if not session.state.step and team.world.size == 1:
            _foretell(session, objective, foretold)
        try:
            return _Loop(session, stepper, schedule, evaluate, adjust, watch).run_to_end()
        finally:
            stepper.forget_records()


def _foretell(session: Session, objective: Objective, cost: Cost | None) -> None:
    """Record what steps should take, where the device was measured."""
    with session.stopwatch.paused():
        cost = cost or foreseen(
            session.model, objective, session.optimizer, session.batches.next, session.settings, session.device
        )
    if cost is not None:
        session.run.record({"kind": "prediction", "step": 0, **cost.record()})


class _Loop:
    """Steps, and what is due between them."""

    def __init__(
        self,
        session: Session,
        stepper: Stepper,
        schedule: Schedule,
        evaluate: Evaluate | None,
        adjust: Adjust | None,
        watch: LayerWatch | None,
    ) -> None:
        self.session, self.stepper, self.schedule = session, stepper, schedule
        self.evaluate = None if evaluate is None else stepper.with_room(evaluate)
        self.adjust, self.watch = adjust, watch
        self.settings = session.settings
        # Found once: to walk through a model takes a slow host longer than to launch some of its layers.
        self.drawn = [module for module in session.model.modules() if isinstance(module, RandomDirections)]

    def _in_stream(self) -> AbstractContextManager[None]:
        """On a GPU, where there are programs for it; elsewhere a stack runs as it is, and may be copied so."""
        on_gpu = next(self.session.model.parameters()).is_cuda
        return streamed_stacks(self.session.model) if on_gpu else nullcontext()

    def run_to_end(self) -> TrainResult:
        session, settings = self.session, self.settings
        blocks = compiled_blocks(session.model) if settings.compile else self._in_stream()
        twice = recompute_blocks(session.model) if settings.recompute else nullcontext()
        narrow = float8_products(session.model) if settings.precision == "float8" else nullcontext()
        with StopSignals() as signals, narrow, blocks, twice, deterministic_kernels(settings.deterministic):
            while True:
                session.team.tell(session.stopwatch.seconds, signals.received)
                received, improved = session.team.signal, False
                if self._evaluation_is_due() and not self._evaluated() and not received:
                    assert self.evaluate is not None
                    improved = evaluate_now(session, self.evaluate) and settings.average == 0  # it needs no best one
                if improved or (self._due(settings.save_every) and session.saved_at != session.state.step):
                    save(session)
                if received:
                    self._stop(received)
                if self._is_over():
                    return self._finish()
                self._step()
                if (spike := session.spikes.take()) is not None:
                    roll_back(session, spike)

    def _due(self, every: int | None) -> bool:
        step = self.session.state.step
        return every is not None and step > 0 and step % every == 0

    def _evaluation_is_due(self) -> bool:
        at_share = self.settings.evaluations_due(self.session.progress()) > self.session.state.evaluations
        return at_share or self._due(self.settings.evaluate_every)

    def _evaluated(self) -> bool:
        return self.evaluate is None or self.session.state.evaluated_at == self.session.state.step

    def _is_over(self) -> bool:
        patience = self.settings.patience
        impatient = patience is not None and self.session.state.evaluations_since_best >= patience
        return impatient or self.session.progress() >= 1

    def _step(self) -> None:
        session, state, every = self.session, self.session.state, self.settings.log_every
        progress = session.progress()
        rate = self.stepper.set_rate(self.schedule(state.step + 1, progress))
        for module in self.drawn:
            redraw_directions(module, state.step)
        if self.adjust is not None:
            self.adjust(session.model, state.step + 1, progress)
        watch = self.watch if state.step == 0 or (state.step + 1) % every == 0 else None
        update = self.stepper.update(session.batches, watch)
        state.step += 1
        if watch is not None:
            session.run.record({"kind": "layers", "step": state.step, **watch.record()})
        state.tokens += update.count
        state.flops += update.flops
        if session.moving is not None:
            session.moving.update()
        session.meter.add(update)
        if session.team.world.size == 1:  # ranks read figures back at the same steps, for they act on them together
            session.publish(session.meter.poll())
        if state.step % every == 0:
            session.close_window(rate)

    def _averaged_weights(self) -> AbstractContextManager[None]:
        return nullcontext() if self.session.moving is None else self.session.moving.inside()

    def _stop(self, received: Signals) -> None:
        """Save, leave a usable model, say how to go on."""
        session = self.session
        step = session.state.step
        path = save(session) if session.saved_at != step else session.run.checkpoints.path(step)
        session.run.checkpoints.wait()
        with self._averaged_weights():
            session.run.write_model(session.model)
        message = (
            f"Stopped by {received.name} after step {step:,}; all is saved in {path}. "
            f"To go on, {session.reporter.to_go_on}."
        )
        session.reporter.say(message)
        raise Interrupted(message, received)

    def _final_figures(self) -> dict[str, float | None]:
        """Of the weights that the run leaves, evaluated now where they were not before."""
        session, state = self.session, self.session.state
        if self.settings.average == 0 or self.evaluate is None:
            return state.best_figures or {}
        if self.settings.average == 1:  # the last weights, which an evaluation of this step has seen
            for record in reversed(session.run.records()):
                if record["kind"] == "evaluation" and record["step"] == state.step:
                    last: dict[str, float | None] = record["figures"]
                    return last
        return finite_or_none(figures_of(session, self.evaluate, nullcontext()))

    def _finish(self) -> TrainResult:
        """Complete the records, save, choose the final weights and write the model folder."""
        session, state, run, say = self.session, self.session.state, self.session.run, self.session.reporter.say
        session.close_window(session.optimizer.param_groups[0]["lr"])
        session.publish(session.meter.collect())
        fresh = not self._evaluated()
        if fresh and self.evaluate is not None:
            evaluate_now(session, self.evaluate)
        if state.best_step is None and not session.meter.ends_finite:  # there are no better weights than these
            raise QkvError(
                f"Training diverged: the loss of step {state.step} is not finite{session.batch_kept()}. {WHAT_HELPS}"
            )
        if fresh or session.saved_at != state.step:
            save(session)
        with session.stopwatch.paused():
            run.checkpoints.wait()
            weights = load_final_weights(session.model, run.checkpoints, self.settings, state, session.moving, say)
            run.write_model(session.model)
        figures = self._final_figures()
        step_seconds, peak = session.meter.step_seconds, session.stopwatch.peak_memory
        recorded = {} if self.stepper.recorded is None else self.stepper.recorded.figures()
        session.record("final", figures, weights=weights, step_seconds=step_seconds, peak_memory=peak, **recorded)
        say(f"Finished after step {state.step:,}; {run.folder} holds the {weights}.")
        for foretold in [record for record in run.records() if record["kind"] == "prediction"][-1:]:
            say(beside(foretold, step_seconds, peak, session.device.type == "cuda"))
        session.model.eval()
        seconds = session.stopwatch.seconds
        return TrainResult(
            folder=run.folder,
            step=state.step,
            tokens=state.tokens,
            flops=state.flops,
            seconds=seconds,
            wall_seconds=seconds + session.stopwatch.paused_seconds,
            figures=figures,
            weights=weights,
        )
