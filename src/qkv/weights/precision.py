"""The type in which a model's weights are held while it answers.

Weights are held in that type, and not narrowed product by product as autocast does: they are half as much to read, and
nothing is converted on the way. Norms, softmaxes and positions are computed in float32 whatever the weights are
(`parts/precision.py`), and answers are given in float32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from qkv.errors import QkvError, nearest_or_all
from qkv.files import opened_tensors
from qkv.parts.eight_bits import quantised

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# auto: as published, where that is float32 or bfloat16 and the device is made for it. int8: linear maps, on a CPU.
PRECISIONS = ("auto", *TYPES, "int8")


def check_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        raise QkvError(f"There is no precision called {precision!r}: {nearest_or_all(precision, PRECISIONS)}")


def settled(precision: str, folder: Path, device: torch.device) -> str:
    """What `auto` means for this model on this device; anything else is what was asked for.

    Nobody is given less than what was published: float32, unless the weights were published in bfloat16 and are used on
    a GPU. There all that was learned is kept, and answers come several times sooner.
    """
    check_precision(precision)
    if precision != "auto":
        return precision
    return "bfloat16" if device.type == "cuda" and published_narrow(folder) else "float32"


def published_narrow(folder: Path) -> bool:
    """Whether most numbers of a folder's tensors are written in bfloat16."""
    narrow = total = 0
    for file in sorted(folder.glob("*.safetensors")) if folder.is_dir() else []:
        with opened_tensors(file) as tensors:
            for name in tensors.keys():  # noqa: SIM118 (it is no dict)
                part = tensors.get_slice(name)
                count = torch.Size(part.get_shape()).numel()
                total += count
                narrow += count if part.get_dtype() == "BF16" else 0
    return 2 * narrow > total


def in_precision(model: Any, precision: str) -> Any:
    """The model with its weights held in this type, on the device where it is; it answers and is not trained."""
    check_precision(precision)
    if precision == "int8":
        return quantised(model)
    return model.to(TYPES[precision])
