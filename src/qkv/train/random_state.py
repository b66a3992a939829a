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

from qkv.parts.device import chance_of, count_of, set_chance


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)  # the generators of all devices too


def random_state() -> dict[str, Any]:
    """The state of Python's, numpy's and torch's generators, in values that JSON can hold."""
    version, numbers, gauss = random.getstate()
    legacy = np.random.get_state(legacy=False)
    assert isinstance(legacy, dict)
    return {
        "python": [version, list(numbers), gauss],
        "numpy": {**legacy, "state": {"key": legacy["state"]["key"].tolist(), "pos": legacy["state"]["pos"]}},
        "torch": _to_text(torch.get_rng_state()),
        **{kind: [_to_text(chance_of(device)) for device in found] for kind, found in _devices().items()},
    }


def set_random_state(state: dict[str, Any]) -> None:
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    words = np.asarray(state["numpy"]["state"]["key"], dtype=np.uint32)
    np.random.set_state({**state["numpy"], "state": {"key": words, "pos": state["numpy"]["state"]["pos"]}})
    torch.set_rng_state(_to_tensor(state["torch"]))
    # A run may go on with fewer or more devices than it began with, or others; those it had get their state back.
    for kind, found in _devices().items():
        for device, text in zip(found, state.get(kind, []), strict=False):
            set_chance(device, _to_tensor(text))


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """What happens inside draws its own numbers: training goes on as if it had not happened."""
    before = random_state()
    try:
        yield
    finally:
        set_random_state(before)


def _devices() -> dict[str, list[torch.device]]:
    """Those whose numbers a process draws, by kind; one of many ranks leaves the GPUs of the others alone."""
    found = {kind: [torch.device(kind, number) for number in range(count_of(kind))] for kind in ("cuda", "mps", "xpu")}
    if dist.is_initialized():
        found["cuda"] = [each for each in found["cuda"] if each.index == torch.cuda.current_device()]
    return found


def _to_text(state: Tensor | None) -> str:
    assert state is not None
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _to_tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
