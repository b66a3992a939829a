"""Models of pictures beside another library's: the same random pictures, at several sizes, their answers compared.

Shapes: b pictures, c channels, h height, w width.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor

from qkv.models.catalogue import find_family
from qkv.models.image_model import ImageModel
from qkv.models.image_text_model import ImageTextModel

COMPARED = ("states", "pooled", "classification", "distilled", "projection")  # heads
TEXT_LENGTH = 9  # of the texts that pictures are compared with


def sees_pictures(model: object) -> TypeGuard[ImageModel | ImageTextModel]:
    """Whether a model reads square pictures and says of each what can be compared here."""
    if isinstance(model, ImageTextModel):
        return True
    return (
        isinstance(model, ImageModel)
        and find_family(model.family).reads == "images"
        and model.head_choice.kind in COMPARED
    )


def widest_picture(model: ImageModel | ImageTextModel) -> int:
    """The longest side to compare at: half as much again as the positions were learned for."""
    return int(model.sizes.image * 3 // 2)


def picture_sizes(model: ImageModel | ImageTextModel, longest: int) -> list[tuple[int, int]]:
    """Heights and widths up to `longest`: one patch, a strip, as trained, and taller."""
    patch, side = model.sizes.patch, model.sizes.image
    sizes = [(patch, patch), (patch, side), (side, side), (widest_picture(model), side)]
    return [size for size in dict.fromkeys(sizes) if max(size) <= longest]


def picture_answers(
    model: ImageModel | ImageTextModel, reference: Any, height: int, width: int, rows: int, seed: int
) -> list[tuple[str, Tensor, Tensor]]:
    """For each kind of answer: its name, ours, and the reference's."""
    random = torch.Generator().manual_seed(seed)
    images = torch.randn(rows, model.sizes.channels, height, width, generator=random)
    parameter = next(model.parameters())
    ours, theirs = images.to(parameter), images.to(next(reference.parameters()))
    if isinstance(model, ImageTextModel):
        ids = torch.randint(0, model.sizes.vocabulary - 1, (rows, TEXT_LENGTH), generator=random)
        ids = with_end(ids, torch.ones_like(ids), model.sizes.end, model.sizes.vocabulary).to(parameter.device)
        found = model(ours, ids)
        expected = reference(input_ids=ids, pixel_values=theirs, interpolate_pos_encoding=True)
        return [
            ("pictures", found.images, expected.image_embeds),
            ("texts", found.texts, expected.text_embeds),
            ("logits", found.logits, expected.logits_per_image),
        ]
    found, expected = model(ours), reference(theirs, interpolate_pos_encoding=True)
    kind = model.head_choice.kind
    if kind == "pooled":
        return [
            ("states", found.states, expected.last_hidden_state),
            ("pooled", found.pooled, expected.pooler_output),
        ]
    if kind == "states":
        return [("states", found, expected.last_hidden_state)]
    if kind == "projection":
        return [("vector", found, expected.image_embeds)]
    return [("label", found, expected.logits)]


def with_end(ids: Tensor, real: Tensor, end: int | None, vocabulary: int) -> Tensor:
    """Texts [b s] whose last `real` token, and no other, is the one that ends them; None: the largest of all."""
    end = vocabulary - 1 if end is None else end
    ids = ids.where(ids != end, (end + 1) % vocabulary if end + 1 < vocabulary else 0)
    last = (real * torch.arange(1, ids.shape[1] + 1)).argmax(1)
    return ids.scatter(1, last[:, None], end)
