"""Folders as timm writes them: `config.json` with an architecture's name, and its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkv.models.catalogue import Model
from qkv.weights.extent import check_extent
from qkv.weights.maps.timm import read_config, refuse_others, rules
from qkv.weights.published import fill_family
from qkv.weights.shards import read_shards


def load_timm(folder: Path, config: Mapping[str, Any]) -> Model:
    """The ViT or DeiT of a folder, in evaluation mode and single precision.

    For pictures of another size its positions are interpolated as timm does it.
    """
    family, sizes, head = read_config(config, folder)
    tensors = read_shards(folder)
    refuse_others(tensors, folder)
    check_extent(sizes, tensors, folder)
    return fill_family(family, rules(family, sizes.query_bias, head), sizes, head, tensors, folder)
