"""Models that find boxes and points beside another library's: the same random pictures, their answers compared.

Shapes: b pictures, c channels, h height, w width.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor

from qkv.models.detection_model import DetectionModel
from qkv.models.vitpose import PoseModel

SIDES = ((64, 64), (97, 131), (200, 33), (256, 320))  # heights and widths of scenes; any would do
LARGEST = 320


def sees_scenes(model: object) -> TypeGuard[DetectionModel | PoseModel]:
    """Whether a model finds boxes in pictures of any size, or points in pictures of one."""
    return isinstance(model, DetectionModel) or (isinstance(model, PoseModel) and model.head_choice.kind == "keypoints")


def widest_scene(model: DetectionModel | PoseModel) -> int:
    """The longest side to compare at."""
    return LARGEST if isinstance(model, DetectionModel) else max(model.sizes.image, model.sizes.image_width)


def scene_sizes(model: DetectionModel | PoseModel, longest: int) -> list[tuple[int, int]]:
    """Heights and widths up to `longest`; of what finds points the one that the reference reads."""
    sizes = SIDES if isinstance(model, DetectionModel) else ((model.sizes.image, model.sizes.image_width),)
    return [size for size in sizes if max(size) <= longest]


def scene_answers(
    model: DetectionModel | PoseModel, reference: Any, height: int, width: int, rows: int, padded: bool, seed: int
) -> list[tuple[str, Tensor, Tensor]]:
    """For each kind of answer: its name, ours, and the reference's. With `padded`, every other picture is smaller."""
    random = torch.Generator().manual_seed(seed)
    images = torch.randn(rows, model.sizes.channels, height, width, generator=random)
    parameter, theirs = next(model.parameters()), next(reference.parameters())
    if isinstance(model, PoseModel):
        return [("maps", model(images.to(parameter)), reference(images.to(theirs)).heatmaps)]
    real = torch.ones(rows, height, width, dtype=torch.bool)
    if padded:
        real[::2, -(-2 * height // 3) :] = False
        real[::2, :, -(-3 * width // 4) :] = False
    images = images * real[:, None]
    real = real.to(parameter.device)
    found = model(images.to(parameter), pixel_mask=real if padded else None)
    expected = reference(pixel_values=images.to(theirs), pixel_mask=real.long() if padded else None)
    if model.head_choice.kind == "states":
        return [("states", found, expected.last_hidden_state)]
    return [("logits", found.logits, expected.logits), ("boxes", found.boxes, expected.pred_boxes)]
