"""From a folder back to a model. Nothing in the folder is trusted, nothing is skipped: every tensor must fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.files import copy_into, read_json, read_tensors
from qkv.models.catalogue import build, count_parameters, find_family
from qkv.models.sequence_to_sequence import SequenceToSequence
from qkv.weights.save import CONFIG_FILE, TENSOR_FILE, tensors_of


def load_model(folder: Path | str, device: str | torch.device = "cpu") -> SequenceToSequence:
    """The model a folder describes, in evaluation mode."""
    folder = Path(folder)
    if not folder.is_dir():
        raise QkvError(f"There is no model folder {folder}: give the folder that holds its {CONFIG_FILE}.")
    config = read_json(folder / CONFIG_FILE)
    if not isinstance(config, dict) or config.get("format") != "qkv-1" or set(config) != {"format", "family", "sizes"}:
        raise QkvError(f'{folder / CONFIG_FILE} must hold exactly "format": "qkv-1", "family" and "sizes".')
    if not isinstance(config["family"], str) or not isinstance(config["sizes"], dict):
        raise QkvError(f'In {folder / CONFIG_FILE}, "family" must be a name and "sizes" an object of named numbers.')
    family = find_family(config["family"])
    sizes = family.sizes(config["sizes"])
    tensors = read_tensors(folder / TENSOR_FILE)
    _check_extent(family.name, sizes, tensors, folder)
    model = build(family.name, sizes)
    copy_into(tensors_of(model), tensors, folder / TENSOR_FILE)
    return model.to(device).eval()


def _check_extent(family: str, sizes: Any, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """A configuration far larger than the file is refused before memory is taken for it; others are told by tensor."""
    held = sum(tensor.numel() for tensor in tensors.values())
    layers = [value for name, value in asdict(sizes).items() if name.endswith("layers")]
    if max(layers, default=0) > len(tensors) or count_parameters(family, sizes) > 10 * held:
        raise QkvError(
            f"{folder / CONFIG_FILE} describes a far larger model than the {held:,} numbers that {TENSOR_FILE} holds: "
            "the two do not belong together."
        )
