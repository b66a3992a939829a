"""Writing files so that a crash or a full disk leaves the old state or the new one, never something between."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from qkv.errors import QkvError

# What a failing write raises: safetensors reports a full disk by its own error.
WRITE_ERRORS = (OSError, SafetensorError)


def write_json(file: Path, value: Any) -> None:
    """JSON that reached the disk; a file that stood there before is replaced in one move."""
    partial = file.with_name(f".{file.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as stream:
            json.dump(value, stream, indent=2, allow_nan=False)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(file.parent)


def read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise QkvError(f"The file {file} is missing.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise QkvError(f"The file {file} is not whole JSON ({error}); it was cut short or edited.") from error


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """A safetensors file that reached the disk; a file that stood there before is replaced in one move."""
    partial = file.with_name(f".{file.name}.partial")
    try:
        # Cloned, because safetensors refuses views of one storage, which joined matrices are.
        save_file({name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}, partial)
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(file.parent)


def read_tensors(file: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(file)
    except FileNotFoundError as error:
        raise QkvError(f"The file {file} is missing.") from error
    except SafetensorError as error:
        raise QkvError(f"The file {file} is not a whole safetensors file ({error}).") from error
    return tensors


def checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def checksum_of_json(value: Any) -> str:
    """The same for equal values, whatever the spacing and the order of keys in the file."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()


def sync_folder(folder: Path) -> None:
    """A rename is safe only once the folder that holds the name reached the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_into(destination: Mapping[str, Tensor], tensors: Mapping[str, Tensor], origin: Path | str) -> None:
    """Fill tensors in place, so that shared parameters stay shared; names and shapes must agree exactly."""
    missing, surplus = destination.keys() - tensors.keys(), tensors.keys() - destination.keys()
    if missing or surplus:
        name = min(missing or surplus)
        side = "lacks" if missing else "holds"
        raise QkvError(f"{origin} {side} the tensor {name}, so it belongs to another model.")
    with torch.no_grad():
        for name, tensor in destination.items():
            if tensor.shape != tensors[name].shape:
                raise QkvError(
                    f"{origin} holds {name} with shape {list(tensors[name].shape)}, "
                    f"but this model has {list(tensor.shape)}."
                )
            tensor.copy_(tensors[name])
