"""Models of sound beside another library's: the same random sounds, of several lengths, their answers compared.

Shapes: b rows, t samples, n frames, m mel bands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.models.catalogue import Model, find_family
from qkv.models.frame_model import FrameModel
from qkv.models.image_model import ImageModel
from qkv.models.sound_model import SoundModel
from qkv.parts.frames import STRIDE


def hears_sounds(model: Model) -> bool:
    """Whether a model of one row hears: its samples, or a picture of them."""
    return isinstance(model, SoundModel) or (
        isinstance(model, ImageModel) and find_family(model.family).reads == "sound"
    )


def sound_lengths(model: Model, longest: int, lengths: Sequence[int]) -> list[int]:
    """Frames to compare at: as many as are given and no more than `longest`; of a picture, all it has."""
    if isinstance(model, FrameModel):
        return [STRIDE * model.sizes.source_positions]
    if isinstance(model, ImageModel):
        return [model.sizes.frames]
    return sorted({length for length in lengths if length <= longest} | {longest})


def sound_answers(
    model: Any, reference: Any, frames: int, rows: int, padded: bool, seed: int
) -> list[tuple[str, Tensor, Tensor]]:
    """For each kind of answer: its name, ours, and the reference's, of frames that are real."""
    random = torch.Generator().manual_seed(seed)
    if isinstance(model, FrameModel):
        heard = torch.randn(rows, model.sizes.mels, frames, generator=random)
        return _named(
            model, model(heard.to(next(model.parameters()))), reference(heard.to(next(reference.parameters())))
        )
    if isinstance(model, ImageModel):  # which reads pictures of one size alone in the other library
        picture = torch.randn(rows, 1, model.sizes.bands, model.sizes.frames, generator=random)
        found = model(picture.to(next(model.parameters())))
        expected = reference(picture[:, 0].transpose(1, 2).to(next(reference.parameters())))
        return _named(model, found, expected)
    samples = model.frames.shortest + (frames - 1) * model.frames.hop + seed % model.frames.hop
    waves = torch.randn(rows, samples, generator=random)
    lengths = torch.full((rows,), samples)
    if padded:
        least = model.frames.shortest
        usual = torch.tensor([max(least, samples // 2), samples, max(least, samples - 1), least])
        lengths = usual.repeat(rows // len(usual) + 1)[:rows]
    ours = model(waves.to(next(model.parameters())), lengths=lengths if padded else None)
    theirs = waves.to(next(reference.parameters()))
    if not padded:
        return _named(model, ours, reference(theirs))
    # One by one: where a norm runs over time, the other library counts padding.
    counts = model.frames.frames_of(lengths).tolist()
    pairs: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for row, (length, count) in enumerate(zip(lengths.tolist(), counts, strict=True)):
        alone = reference(theirs[row : row + 1, :length])
        for name, found, expected in _named(model, ours, alone):
            one = found[row, :count] if found.ndim == 3 else found[row, None]
            pairs.setdefault(name, []).append((one, expected[0] if expected.ndim == 3 else expected))
    return [
        (name, torch.cat([one for one, _ in each]), torch.cat([other for _, other in each]))
        for name, each in pairs.items()
    ]


def _named(model: Any, found: Any, expected: Any) -> list[tuple[str, Tensor, Tensor]]:
    kind = model.head_choice.kind
    if kind == "pretraining":
        return [
            ("predicted", found.predicted, expected.projected_states),
            ("quantised", found.wanted, expected.projected_quantized_states),
        ]
    if kind == "pooled":
        return [("states", found.states, expected.last_hidden_state), ("pooled", found.pooled, expected.pooler_output)]
    if kind == "states":
        return [("states", found, expected.last_hidden_state)]
    return [("label" if kind == "classification" else "logits", found, expected.logits)]
