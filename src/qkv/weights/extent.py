"""A configuration that no file can fill is refused before time or memory is spent on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv.errors import QkvError

MOST_LAYERS_A_TENSOR = 8  # layers may share their tensors, but a thousand layers of one are no model


def check_extent(sizes: Any, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """More layers than tensors would take for ever to build."""
    named = asdict(sizes).items()
    layers = [value for name, value in named if name.endswith("layers")]
    layers += [sum(value) for name, value in named if name.endswith("depths")]  # blocks of each stage
    if max(layers, default=0) > MOST_LAYERS_A_TENSOR * max(1, len(tensors)):
        raise QkvError(
            f"The config.json of {folder} describes {max(layers):,} layers, and there are {len(tensors):,} tensors: "
            "the two do not belong together."
        )
