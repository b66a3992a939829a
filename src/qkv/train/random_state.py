"""Every random generator that training may draw from, as JSON and back."""

import base64
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)  # CUDA's generators too


def random_state() -> dict[str, Any]:
    """The state of Python's, numpy's and torch's generators, in values that JSON can hold."""
    version, numbers, gauss = random.getstate()
    legacy = np.random.get_state(legacy=False)
    assert isinstance(legacy, dict)
    return {
        "python": [version, list(numbers), gauss],
        "numpy": {**legacy, "state": {"key": legacy["state"]["key"].tolist(), "pos": legacy["state"]["pos"]}},
        "torch": _to_text(torch.get_rng_state()),
        "cuda": [_to_text(torch.cuda.get_rng_state(device)) for device in _devices()],
    }


def set_random_state(state: dict[str, Any]) -> None:
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    words = np.asarray(state["numpy"]["state"]["key"], dtype=np.uint32)
    np.random.set_state({**state["numpy"], "state": {"key": words, "pos": state["numpy"]["state"]["pos"]}})
    torch.set_rng_state(_to_tensor(state["torch"]))
    # A run may go on with fewer or more devices than it began with; those it had get their state back.
    for device, text in zip(_devices(), state["cuda"], strict=False):
        torch.cuda.set_rng_state(_to_tensor(text), device)


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """What happens inside draws its own numbers: training goes on as if it had not happened."""
    before = random_state()
    try:
        yield
    finally:
        set_random_state(before)


def _devices() -> list[int]:
    """The GPUs whose numbers a process draws; one of many ranks leaves those of the others alone."""
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.current_device()] if dist.is_initialized() else list(range(torch.cuda.device_count()))


def _to_text(state: Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _to_tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
