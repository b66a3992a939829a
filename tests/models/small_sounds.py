"""Models of samples with any of their heads at a size that a test can afford."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch

from qkv.models.catalogue import FAMILIES, build
from qkv.models.head_choice import HeadChoice
from qkv.models.sound_model import SoundModel
from qkv.models.wav2vec2 import Wav2Vec2Sizes
from tests.models.small import perturb

SMALL = Wav2Vec2Sizes(
    vocabulary=7, channels=(8, 6, 10), kernels=(10, 3, 2), strides=(5, 2, 2), width=12, hidden=20, heads=2, layers=2,
    position_kernel=8, position_groups=3, entries=5, quantised=8, space=9, decision_width=11, dropout=0.0,
    hidden_dropout=0.0, attention_dropout=0.0, head_dropout=0.0, layer_dropout=0.0, hidden_length=4,
)  # fmt: skip
KINDS = {"base": SMALL, "prenorm": replace(SMALL, norm="before", frame_norm="frame", frame_bias=True)}
CASES = [(sizes, kind) for sizes in KINDS for kind in FAMILIES["wav2vec2"].heads]
LABELS = ("bad", "fair", "good")
SHORTEST, HOP = 30, 20


def choice(kind: str) -> HeadChoice:
    labels = LABELS if kind in ("classification", "tokens") else ()
    return HeadChoice(kind, labels, pooling="mean" if kind == "embedding" else None)


@cache
@torch.inference_mode(False)  # kept for tests that ask for gradients too, whoever asks first
def small_sound(sizes: str = "base", kind: str = "ctc") -> SoundModel:
    """The model with noise on every parameter. No test changes it."""
    return new_sound(sizes, kind)


def new_sound(sizes: str = "base", kind: str = "ctc", **given: Any) -> SoundModel:
    torch.manual_seed(0)
    model: SoundModel = build("wav2vec2", replace(KINDS[sizes], **given), choice(kind)).eval()
    perturb(model)
    return model
