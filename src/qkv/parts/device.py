"""Where a model is: the device that a person names."""

import torch

from qkv.errors import QkvError


def device_called(name: str) -> torch.device:
    """The device of a name; "auto" takes CUDA where it is present."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise QkvError(f"There is no device called {name!r}; try cpu, cuda or auto.") from error
    if device.type not in ("cpu", "cuda"):
        raise QkvError(f"qkv runs on cpu and cuda, not on {name!r}; auto takes cuda where it is present.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise QkvError("The device cuda was asked for, but this machine offers none; use cpu or auto.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise QkvError(f"There is no {name}: this machine has {torch.cuda.device_count()} CUDA devices.")
    return device
