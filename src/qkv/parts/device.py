"""Where a model is: the device that a person names, and what it can do."""

from __future__ import annotations

import platform
import warnings
from functools import cache

import torch
from torch import Tensor

from qkv.errors import QkvError, QkvWarning

OLDEST = 8  # generation of GPUs, as the first number of their compute capability, that qkv is tested on
ROOM = 2**36  # bytes of a GPU that has room for as many things at once as pay
NAMES = ("cpu", "cuda", "mps", "xpu")  # kinds of device


def device_called(name: str) -> torch.device:
    """The device of a name; "auto" takes CUDA where it is present, and else the CPU."""
    if name == "auto":
        gpu = torch.device("cuda")
        if not torch.cuda.is_available():
            return torch.device("cpu")
        if not torch_serves(gpu):
            _tell(f"This torch was not built for {device_name(gpu)}, which is too old for it: all is done on the CPU.")
            return torch.device("cpu")
        return _told(gpu)
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise QkvError(f"There is no device called {name!r}; try cpu, cuda or auto.") from error
    if device.type not in NAMES:
        raise QkvError(f"qkv runs on {', '.join(NAMES)}, not on {name!r}; auto takes cuda where it is present.")
    if device.type == "cpu":
        return device
    there = count_of(device.type)
    if not there:
        raise QkvError(f"The device {device.type} was asked for, but this machine offers none; use cpu or auto.")
    if (device.index or 0) >= there:
        raise QkvError(f"There is no {name}: this machine has {there} {device.type.upper()} devices.")
    if not torch_serves(device):
        raise QkvError(f"This torch was not built for {name}, {device_name(device)}, which is too old for it: use cpu.")
    return _told(device)


def count_of(kind: str) -> int:
    """How many devices of a kind torch offers here."""
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    module = torch.get_device_module(kind)
    return int(module.device_count()) if module.is_available() else 0


def torch_serves(gpu: torch.device) -> bool:
    """Whether a GPU is not too old for the programs that torch was built with."""
    known = [int(each.rstrip("af").split("_")[1]) for each in torch.cuda.get_arch_list() if each.startswith("sm_")]
    if gpu.type != "cuda" or torch.version.hip is not None or not known:
        return True
    major, minor = torch.cuda.get_device_capability(gpu)
    return 10 * major + minor >= min(known)


def is_tested(device: torch.device) -> bool:
    """Whether qkv is tested on such a device; a GPU that is not here is taken for one."""
    if device.type != "cuda":
        return device.type == "cpu"
    if torch.version.hip is not None:
        return False
    return not torch.cuda.is_available() or torch.cuda.get_device_capability(device)[0] >= OLDEST


def has_bfloat16(device: torch.device) -> bool:
    """Whether a device says that it multiplies bfloat16, and does not only pretend to."""
    if device.type == "mps":
        return torch.backends.mps.is_macos_or_newer(14, 0)
    if device.type == "xpu":
        return bool(torch.xpu.is_bf16_supported())
    if device.type == "cuda" and torch.version.hip is not None:
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return is_tested(device)


def check_bfloat16(device: torch.device) -> None:
    if not has_bfloat16(device):
        raise QkvError(f"{device_name(device)} does not multiply bfloat16: take precision float32.")


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.machine() if device.type == "cpu" else f"The device {device.type}"


def at_once(pays: int, least: int, device: torch.device) -> int:
    """How many of something are done together: as many as pay on a GPU that has room for them, elsewhere the least."""
    if device.type != "cuda":
        return least
    memory: int = torch.cuda.get_device_properties(device).total_memory
    return max(least, min(pays, pays * memory // ROOM))


def wait_for(device: torch.device) -> None:
    """Until a device has done all that it was told."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def chance_of(device: torch.device) -> Tensor | None:
    """The state of a device's random numbers; None: they are those of the CPU."""
    if device.type in ("cpu", "meta"):
        return None
    if device.type == "mps":
        return torch.mps.get_rng_state()
    state: Tensor = torch.get_device_module(device.type).get_rng_state(device)
    return state


def set_chance(device: torch.device, state: Tensor) -> None:
    if device.type == "mps":
        torch.mps.set_rng_state(state)
    else:
        torch.get_device_module(device.type).set_rng_state(state, device)


def _told(device: torch.device) -> torch.device:
    if not is_tested(device):
        _tell(
            f"{device_name(device)} is untested: torch's own operators run there, in float32 if no other precision is "
            "asked for."
        )
    return device


@cache
def _tell(sentence: str) -> None:
    """Once in a process."""
    warnings.warn(sentence, QkvWarning, stacklevel=4)
