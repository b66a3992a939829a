"""The tensors of a published folder: one safetensors file, or several with an index that says which holds what."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from qkv.errors import QkvError
from qkv.files import read_json, read_tensors, write_json, write_tensors
from qkv.weights.save import TENSOR_FILE

INDEX_FILE = "model.safetensors.index.json"
SHARD_BYTES = 5 * 10**9  # a larger model is written in several files


def read_shards(folder: Path) -> dict[str, Tensor]:
    """All tensors by their names; a file that is named and missing, or holds other tensors than said, is an error."""
    if (folder / TENSOR_FILE).exists():
        return read_tensors(folder / TENSOR_FILE)
    if not (folder / INDEX_FILE).exists():
        old = sorted(file.name for file in folder.glob("*.bin"))
        if old:
            raise QkvError(f"{folder} has its weights in {old[0]}, a pickle: `qkv convert {folder} NEW` rewrites it.")
        raise QkvError(f"{folder} has no {TENSOR_FILE} and no {INDEX_FILE}.")
    index = read_json(folder / INDEX_FILE)
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not all(_is_plain(name) for name in places.values()):
        raise QkvError(f'{folder / INDEX_FILE} must hold "weight_map", which names a file beside it for each tensor.')
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(places.values())):
        held = read_tensors(folder / file)
        said = {name for name, place in places.items() if place == file}
        if held.keys() != said:
            raise QkvError(
                f"{folder / file} holds other tensors than {INDEX_FILE} says, such as {min(held.keys() ^ said)}."
            )
        tensors |= held
    return tensors


def _is_plain(name: object) -> bool:
    return isinstance(name, str) and Path(name).name == name and name.endswith(".safetensors")


def write_shards(folder: Path, tensors: Mapping[str, Tensor], most: int = SHARD_BYTES) -> None:
    """One file, or as many as are needed that none but a single larger tensor takes more than `most` bytes."""
    shards: list[dict[str, Tensor]] = [{}]
    used = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        if shards[-1] and used + size > most:
            shards.append({})
            used = 0
        shards[-1][name] = tensor
        used += size
    for old in [*folder.glob("model*.safetensors"), folder / INDEX_FILE]:
        old.unlink(missing_ok=True)
    if len(shards) == 1:
        write_tensors(folder / TENSOR_FILE, shards[0])
        return
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_tensors(folder / file, shard)
        places |= dict.fromkeys(shard, file)
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    write_json(folder / INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": places})
