"""A model as a folder: `config.json` says what to build, `model.safetensors` holds its tensors by canonical names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.files import WRITE_ERRORS, checksum_of_json, write_json, write_tensors
from qkv.models.catalogue import Model, config_of
from qkv.parts.low_rank import refuse_updates

CONFIG_FILE = "config.json"
TENSOR_FILE = "model.safetensors"
GENERATION_FILE = "generation_config.json"  # how others go on with texts: what ends one, above all
CONFIG_NOTE = "config"  # beside the tensors: the checksum of the configuration they were saved with


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's tensors by name; a shared one (tied embeddings) stands once, under its first name."""
    state: dict[str, Tensor] = model.state_dict()
    first_place: set[tuple[object, ...]] = set()
    named = {}
    for name, tensor in state.items():
        # The storage and not the address: tensors that occupy no memory have none.
        place = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.numel())
        if place not in first_place:
            first_place.add(place)
            named[name] = tensor
    return named


def save_model(model: Model, folder: Path, tensors: Mapping[str, Tensor] | None = None) -> None:
    """Write config and tensors (the model's own, or others of the same names, such as an average)."""
    refuse_updates(model)
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        config = config_of(model)
        notes = {CONFIG_NOTE: checksum_of_json(config)}
        write_tensors(folder / TENSOR_FILE, tensors if tensors is not None else tensors_of(model), notes)
        write_json(folder / CONFIG_FILE, config)
    except WRITE_ERRORS as error:
        raise QkvError(f"Cannot write the model to {folder}: {error}; make room or name another folder.") from error
