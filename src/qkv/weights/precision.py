"""The type in which a model's weights are held while it answers.

Weights are held in that type, and not narrowed product by product as autocast does: they are half as much to read, and
nothing is converted on the way. Norms, softmaxes and positions are computed in float32 whatever the weights are
(`parts/precision.py`), and answers are given in float32.
"""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch

from qkv.errors import QkvError, QkvWarning, nearest_or_all
from qkv.files import opened_tensors
from qkv.parts import cpu
from qkv.parts.cpu_maps import onednn_takes
from qkv.parts.device import check_bfloat16, is_tested
from qkv.parts.eight_bits import quantised
from qkv.parts.narrow_maps import BFloat16Linear, NarrowLinear, with_narrow_maps

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# auto: as published, where that is float32 or bfloat16 and the device is made for it. int8: linear maps, on a CPU.
PRECISIONS = ("auto", *TYPES, "int8")


def check_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        raise QkvError(f"There is no precision called {precision!r}: {nearest_or_all(precision, PRECISIONS)}")


def settled(precision: str, folder: Path, device: torch.device) -> str:
    """What `auto` means for this model on this device; anything else is what was asked for.

    Nobody is given less than what was published: float32, unless the weights were published in bfloat16 and are used on
    a GPU that qkv is tested on. There all that was learned is kept, and answers come several times sooner.
    """
    check_precision(precision)
    if precision == "bfloat16" and device.type != "cpu":
        check_bfloat16(device)
    if precision != "auto":
        return precision
    return "bfloat16" if device.type == "cuda" and is_tested(device) and published_narrow(folder) else "float32"


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
    """The model with its weights held in this type, on the device where it is; it answers and is not trained.

    On a CPU who multiplies narrow weights differs from processor to processor, and is told.
    """
    check_precision(precision)
    if precision == "int8":
        return _told("In 8 bits", quantised(model))
    if precision == "bfloat16" and all(tensor.device.type == "cpu" for tensor in model.parameters()):
        if not onednn_takes(torch.bfloat16):
            narrow = with_narrow_maps(model, BFloat16Linear)
            return _told("In bfloat16, which this processor does not multiply by itself", narrow)
        _say("In bfloat16, which this processor multiplies.")
    return model.to(TYPES[precision])


def _told(how: str, model: Any) -> Any:
    ways = {module.way() for module in model.modules() if isinstance(module, NarrowLinear)}
    slow = "; a C++ compiler makes it quicker" if cpu.library() is None else ""
    if ways:
        _say(f"{how}: large maps are {' or '.join(sorted(ways))}, all else is in single precision{slow}.")
    return model


@cache
def _say(sentence: str) -> None:
    """Once in a process: warnings that are caught elsewhere would let it come again."""
    warnings.warn(sentence, QkvWarning, stacklevel=4)
