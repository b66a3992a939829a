"""Which steps can be recorded: none that waits for the device, and why not."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from qkv.parts.reversible import ReversibleStack
from qkv.train.settings import TrainSettings
from qkv.train.standing import HostAsks

# What a step says that cannot be recorded. Anything else is no business of records, and ends the training as ever.
UNRECORDABLE = (HostAsks, RuntimeError, TypeError, ValueError, AttributeError, AssertionError)


def reason_against(
    model: nn.Module, settings: TrainSettings, device: torch.device, ranks: int = 1, adjusted: bool = False
) -> str | None:
    """Why steps of a training cannot be recorded at all, where that is known before the first."""
    if device.type != "cuda":
        return "there is no GPU"
    if ranks > 1:
        return "several ranks train together"
    # Both set the random numbers back on the way back, which a graph being recorded does not allow.
    if settings.recompute:
        return "blocks are computed twice"
    if any(isinstance(module, ReversibleStack) for module in model.modules()):
        return "layers are computed from those after them"
    if adjusted:
        return "numbers of the model change between updates"
    return None


@contextmanager
def no_waiting(device: torch.device) -> Iterator[None]:
    """Inside, an operator that waits for the device raises an error, as it would in a record; but nothing is broken."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def why_of(error: Exception) -> str:
    """The first line of an error, and the last place of ours that it came from."""
    own = [at for at in traceback.extract_tb(error.__traceback__) if "qkv" in Path(at.filename).parts]
    said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return f"{Path(own[-1].filename).name}, line {own[-1].lineno}, says '{said}'" if own else f"torch says '{said}'"
