"""The batch whose loss or gradient was not finite, found again and kept where a person can look at it."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from qkv.errors import QkvError
from qkv.files import WRITE_ERRORS, write_json, write_tensors
from qkv.train.objectives.loss import Batch
from qkv.train.prefetch import Prefetch

FOLDER = "not_finite"

# A step, and the place in the data behind it: where a window of updates began.
Window = tuple[int, dict[str, Any]]


def keep_batches(folder: Path, step: int, window: Window, batches: Prefetch, accumulate: int) -> Path:
    """Write what update `step` of this window read: `batch-0.safetensors`, … and `batches.json`.

    The loop learns late that an update was skipped, for it never waits for the device; but a place in the data is
    enough to make its batches again.
    """
    began, place = window
    batches.rewind(place)
    for _ in range((step - began - 1) * accumulate):
        _whole(batches)
    place = batches.position
    read = [batch for _ in range(accumulate) for batch in _whole(batches)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, batch in enumerate(read):
            write_tensors(folder / f"batch-{number}.safetensors", _tensors(batch))
        described = [{"kind": type(batch).__name__, **_numbers(batch)} for batch in read]
        write_json(folder / "batches.json", {"step": step, "place": place, "batches": described})
    except WRITE_ERRORS as error:
        raise QkvError(f"The loss of step {step} is not finite, and its batch cannot be kept ({error}).") from error
    return folder


def _whole(batches: Prefetch) -> list[Batch]:
    """The next batch, or the parts that it comes in."""
    taken = [batches.take()]
    while not batches.behind_whole:
        taken.append(batches.take())
    return taken


def _values(batch: Any) -> dict[str, Any]:
    return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}


def _tensors(batch: Any) -> dict[str, torch.Tensor]:
    return {name: value for name, value in _values(batch).items() if isinstance(value, torch.Tensor)}


def _numbers(batch: Any) -> dict[str, Any]:
    return {name: value for name, value in _values(batch).items() if isinstance(value, bool | int | float | str)}
