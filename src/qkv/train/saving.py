"""A session put into a checkpoint, and taken out of one."""

from dataclasses import asdict
from pathlib import Path

from qkv.files import copy_into
from qkv.train.checkpoint import Checkpoint
from qkv.train.meter import Meter, Stopwatch
from qkv.train.random_state import random_state, set_random_state
from qkv.train.session import Session
from qkv.train.state import TrainState


def save(session: Session) -> Path:
    session.publish(session.meter.collect())
    with session.stopwatch.paused():
        checkpoints = session.run.checkpoints
        path = checkpoints.save(
            session.state.step,
            model=session.model,
            optimizer=session.optimizer,
            average=session.moving.tensors if session.moving is not None else None,
            random=random_state(),
            state={
                "train": asdict(session.state),
                "seconds": session.stopwatch.seconds,
                "paused_seconds": session.stopwatch.paused_seconds,
                "meter": session.meter.state_dict(),
                "data": session.batches.position,
            },
        )
        checkpoints.retain(max(session.settings.keep, session.settings.average), session.state.best_step)
    session.saved_at = session.state.step
    return path


def resume(session: Session) -> None:
    """Go on from the newest whole checkpoint, or from the first step where there is none yet."""
    say = session.reporter.say
    checkpoint = session.run.checkpoints.read_newest(say)
    session.run.forget_after(checkpoint.step if checkpoint else 0)
    if checkpoint is None:
        say(f"{session.run.folder} has no checkpoint yet; starting from the first step.")
        return
    restore(session, checkpoint)
    say(f"Resuming after step {checkpoint.step:,}.")


def restore(session: Session, checkpoint: Checkpoint) -> None:
    checkpoint.restore_model(session.model)
    checkpoint.restore_optimizer(session.model, session.optimizer)
    if session.moving is not None:
        copy_into(session.moving.tensors, checkpoint.average or {}, checkpoint.folder / "average.safetensors")
    state = checkpoint.state
    session.state = TrainState(**state["train"])
    session.stopwatch = Stopwatch(session.device, state["seconds"], state["paused_seconds"])
    session.meter = Meter(session.device, session.stopwatch, session.meter.peak)
    session.meter.load_state_dict(state["meter"])
    session.batches.rewind(state["data"])
    session.saved_at = checkpoint.step
    set_random_state(checkpoint.random)
