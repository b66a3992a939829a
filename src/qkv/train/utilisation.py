"""How much of a device's arithmetic a training uses."""

import torch

from qkv.errors import QkvError
from qkv.train.cost.profile import PROMISED, find_profile


def peak_of(device: torch.device, precision: str) -> float | None:
    """Operations a second that a device has at most: what its maker promises, or the best that was measured.

    None where neither is known.
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for known, promised in PROMISED.items():
            if known in name:
                return promised[precision]
    try:
        profile = find_profile(str(device))
    except QkvError:  # a file of one's own that is broken: `qkv cost` says so
        return None
    return None if profile is None else profile.peak(precision) or None
