"""Small published folders, written by qkv itself, and ways to damage them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from qkv.models.catalogue import FAMILIES, build
from qkv.models.head_choice import WITH_LABELS, HeadChoice
from qkv.weights.maps.catalogue import PUBLISHED
from qkv.weights.published import save_published
from tests.models.small import perturb, shrunk

# Sizes that do not follow from the published ones by making all of them small.
SMALL = {
    "longformer": {"first_position": 4},  # after the padding token of the tests
    "ast": {"patch": 4, "frequency_stride": 3, "time_stride": 2},
    "wav2vec2": {
        "channels": (8, 6, 10), "kernels": (10, 3, 2), "strides": (5, 2, 2), "position_kernel": 8, "position_groups": 4,
        "codebooks": 2, "quantised": 8,
    },
}  # fmt: skip


def small_published(family: str, kind: str = "", **sizes: Any) -> Any:
    """A model of a family with noise on every parameter."""
    head = HeadChoice(kind, labels=("a", "b", "c") if kind in WITH_LABELS else ()) if kind else None
    small = {**SMALL.get(family, {}), **sizes}
    model = build(family, shrunk(next(iter(FAMILIES[family].published.values())), **small), head).eval()
    perturb(model)
    return model


def write_gpt2(folder: Path, shard_bytes: int = 10**9) -> Path:
    model = small_published("gpt2", "language", positions=32)
    save_published(model, folder, PUBLISHED, {"eos_token_id": 1}, shard_bytes)
    return folder


def edit_config(folder: Path, without: str = "", **changes: Any) -> None:
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **changes}
    config.pop(without, None)
    file.write_text(json.dumps(config))


def edit_tensors(folder: Path, without: str = "", **changes: Tensor) -> None:
    file = folder / "model.safetensors"
    tensors = {**load_file(file), **{name.replace("__", "."): tensor for name, tensor in changes.items()}}
    tensors.pop(without, None)
    save_file(tensors, file)
