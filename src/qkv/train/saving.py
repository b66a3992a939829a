"""A session put into a checkpoint, and taken out of one."""

from copy import deepcopy
from dataclasses import asdict
from pathlib import Path

from qkv.errors import QkvError
from qkv.train.checkpoint import Checkpoint
from qkv.train.meter import Meter, Stopwatch
from qkv.train.random_state import random_state
from qkv.train.session import WHAT_HELPS, Session
from qkv.train.spikes import ROLL_BACKS, Spike
from qkv.train.state import TrainState


def save(session: Session) -> Path:
    session.publish(session.meter.collect())
    with session.stopwatch.paused():
        checkpoints = session.run.checkpoints
        state = {
            "train": asdict(session.state),
            "seconds": session.stopwatch.seconds,
            "paused_seconds": session.stopwatch.paused_seconds,
            "meter": session.meter.state_dict(),
            "data": session.batches.position,
            "windows": session.windows,
            "spikes": session.spikes.losses,
            "records": session.run.records_end(),
        }
        path = checkpoints.save(
            session.state.step,
            model=session.model,
            optimizer=session.optimizer,
            average=session.moving.tensors if session.moving is not None else None,
            random=random_state(),
            state=deepcopy(state),  # ranks write it while training goes on
        )
        settings = session.settings
        newest, best = max(settings.keep, settings.average), session.state.best_step
        checkpoints.retain(newest, best, settings.keep_every, settings.save_every)
    session.saved_at = session.state.step
    return path


def resume(session: Session) -> None:
    """Go on from the newest whole checkpoint, or from the first step where there is none yet."""
    say = session.reporter.say
    checkpoint = session.run.checkpoints.read_newest(say)
    session.run.forget_after(checkpoint.state["records"] if checkpoint else 0)
    if checkpoint is None:
        say(f"{session.run.folder} has no checkpoint yet; starting from the first step.")
        return
    restore(session, checkpoint)
    say(f"Resuming after step {checkpoint.step:,}.")


def restore(session: Session, checkpoint: Checkpoint) -> None:
    checkpoint.restore_model(session.model)
    checkpoint.restore_optimizer(session.model, session.optimizer)
    if session.moving is not None:
        checkpoint.restore_average(session.model, session.moving.tensors)
    state = checkpoint.state
    session.state = TrainState(**state["train"])
    session.stopwatch = Stopwatch(session.device, state["seconds"], state["paused_seconds"])
    session.team.seconds = state["seconds"]
    session.meter = Meter(session.device, session.stopwatch, session.meter.peak)
    session.meter.load_state_dict(state["meter"])
    session.batches.rewind(state["data"])
    session.windows = [(step, position) for step, position in state["windows"]]
    session.spikes.losses = list(state["spikes"])
    session.saved_at = checkpoint.step
    checkpoint.restore_random(session.settings.seed, session.team.stream)


def roll_back(session: Session, spike: Spike) -> None:
    """Back to the newest checkpoint from before the loss leapt up, and on with the data that comes now.

    The batches in between are passed over: with them the same would happen again. Time and operations that were spent
    stay spent.
    """
    say = session.reporter.say
    told = f"The loss up to step {spike.step:,} is {spike.loss:.4g}, where {spike.usual:.4g} is usual"
    before = max((step for step, _ in session.windows if step < spike.step), default=0)
    assert session.settings.save_every is not None, "the settings see to it"
    checkpoint = session.run.checkpoints.read_up_to(before, session.settings.save_every)
    if checkpoint is None:
        say(f"{told}; there is no checkpoint from before it, so training goes on.")
        return
    times = session.state.roll_backs + 1
    if times > ROLL_BACKS:
        raise QkvError(f"{told}; training went back {ROLL_BACKS} times already. {WHAT_HELPS}")
    position, flops, stopwatch = session.batches.position, session.state.flops, session.stopwatch
    restore(session, checkpoint)
    session.state.flops, session.state.roll_backs = flops, times
    session.stopwatch = session.meter.stopwatch = stopwatch
    session.batches.rewind(position)
    session.windows = [(checkpoint.step, position)]
    session.run.checkpoints.forget_after(checkpoint.step)
    session.run.forget_after(checkpoint.state["records"])
    session.run.record(
        {
            "kind": "roll_back",
            "step": checkpoint.step,
            "from_step": spike.step,
            "loss": spike.loss,
            "usual_loss": spike.usual,
        }
    )
    save(session)
    say(f"{told}; training went back to step {checkpoint.step:,} and passes over the batches in between.")
