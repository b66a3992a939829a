"""From a folder back to a model. Nothing in the folder is trusted, nothing is skipped: every tensor must fit."""

from __future__ import annotations

from pathlib import Path

import torch

from qkv.errors import QkvError
from qkv.files import copy_into, read_json, read_tensors
from qkv.models.catalogue import build, find_family
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
    model = build(family.name, family.sizes(config["sizes"]))
    copy_into(tensors_of(model), read_tensors(folder / TENSOR_FILE), folder / TENSOR_FILE)
    return model.to(device).eval()
