"""Any family of pictures with any of its heads at a size that a test can afford."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch

from qkv.models.catalogue import FAMILIES, build
from qkv.models.head_choice import HeadChoice
from qkv.models.image_model import ImageModel
from tests.models.small import perturb, shrunk

# What finds boxes and points answers in other shapes, and has tests of its own.
IMAGE_FAMILIES = [
    name
    for name, family in FAMILIES.items()
    if family.heads and family.reads == "images" and not {"detection", "keypoints"} & set(family.heads)
]
LABELS = ("bad", "fair", "good")


def small_sizes(family: str) -> Any:
    """The first published size, shrunk: pictures of 12 by 12 in nine patches."""
    return shrunk(next(iter(FAMILIES[family].published.values())), image=12, patch=4)


def choice(kind: str) -> HeadChoice:
    labels = LABELS if kind in ("classification", "distilled") else ()
    return HeadChoice(kind, labels, pooling="mean" if kind == "embedding" else None)


@cache
@torch.inference_mode(False)  # kept for tests that ask for gradients too, whoever asks first
def small_model(family: str, kind: str | None = None, **sizes: Any) -> ImageModel:
    """The model with noise on every parameter: fresh zeros and ones would hide a mix-up. No test changes it."""
    torch.manual_seed(0)
    model = build(family, replace(small_sizes(family), **sizes), choice(kind or FAMILIES[family].heads[0])).eval()
    perturb(model)
    return model
