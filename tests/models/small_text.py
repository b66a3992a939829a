"""Any text family with any of its heads at a size that a test can afford."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch

from qkv.models.catalogue import FAMILIES, build
from qkv.models.head_choice import HeadChoice
from qkv.models.text_model import TextModel
from tests.models.small import perturb, shrunk

TEXT_FAMILIES = [name for name, family in FAMILIES.items() if family.heads and family.reads == "text"]
LOOKS_BACK = ("clip-text",)  # and writes nothing
DECODERS = [name for name in TEXT_FAMILIES if FAMILIES[name].heads[0] == "language" or name in LOOKS_BACK]
LABELS = ("bad", "fair", "good")


def small_sizes(family: str) -> Any:
    """The first published size, shrunk; a window is so narrow that it is crossed, and head groups are shared."""
    sizes = shrunk(next(iter(FAMILIES[family].published.values())))
    narrow = {"window": 3, "key_value_heads": 1}
    return replace(sizes, **{name: value for name, value in narrow.items() if getattr(sizes, name, None) is not None})


def choice(kind: str) -> HeadChoice:
    labels = LABELS if kind in ("classification", "tokens") else ()
    return HeadChoice(kind, labels, pooling="mean" if kind == "embedding" else None)


@cache
@torch.inference_mode(False)  # kept for tests that ask for gradients too, whoever asks first
def small_model(family: str, kind: str | None = None) -> TextModel:
    """The model with noise on every parameter: fresh zeros and ones would hide a mix-up. No test changes it."""
    torch.manual_seed(0)
    model = build(family, small_sizes(family), choice(kind or FAMILIES[family].heads[0])).eval()
    perturb(model)
    return model
