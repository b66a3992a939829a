"""Pictures in, boxes around their objects out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from qkv.data.box_rows import plain_picture
from qkv.data.boxes import Box
from qkv.data.images import Source
from qkv.data.preprocessing import Preprocessing
from qkv.data.preprocessing_files import write_preprocessing
from qkv.errors import QkvError
from qkv.generate.use import at_rest
from qkv.models.detection_model import DetectionModel
from qkv.parts.boxes import corners
from qkv.parts.detection_heads import Detections
from qkv.parts.precision import widened
from qkv.weights.save import save_model


class Detector:
    """Finds the objects of pictures of any size."""

    def __init__(self, model: DetectionModel, preprocessing: Preprocessing) -> None:
        if not isinstance(model, DetectionModel) or model.head_choice.kind != "detection":
            raise QkvError("Objects are found by a model with a detection head, and this one has none.")
        if preprocessing.crop is not None:
            raise QkvError("Objects are looked for in whole pictures: prepare them without a crop.")
        self.model, self.preprocessing = model, preprocessing

    def save(self, folder: Path | str) -> None:
        """A folder that `qkv.load` opens: the model, and how pictures become its inputs."""
        save_model(self.model, Path(folder))
        write_preprocessing(self.preprocessing, folder)

    def run(self, images: Sequence[Source], *, threshold: float = 0.5, batch: int = 4) -> list[list[Box]]:
        """The objects of each picture, the likeliest first, in pixels of the upright picture.

        Only those likelier than `threshold`; at most `batch` pictures are held at a time.
        """
        if not 0 <= threshold <= 1:
            raise QkvError(f"A threshold is a probability from 0 to 1, not {threshold:g}.")
        found: list[list[Box]] = []
        device = next(self.model.parameters()).device
        with at_rest(self.model):
            for first in range(0, len(images), batch):
                pictures = [plain_picture(source) for source in images[first : first + batch]]
                # Beside a larger picture a smaller one is padded, which changes what is said of it a little.
                inputs = self.preprocessing.batch(pictures).to(device)
                detections = self.model(inputs.pixels, pixel_mask=inputs.real)
                sizes = [(picture.width, picture.height) for picture in pictures]
                for boxes in found_boxes(detections, sizes, self.model.head_choice.labels, threshold):
                    found.append(sorted(boxes, key=lambda box: -box.probability))
        return found


def found_boxes(
    detections: Detections, sizes: Sequence[tuple[int, int]], labels: Sequence[str], threshold: float
) -> list[list[Box]]:
    """What queries say, as boxes in pixels of pictures of these sizes (width, height); in the order of queries.

    A query speaks for its likeliest class, "no object" left aside. [carion2020 §4]
    """
    probabilities, numbers = widened(detections.logits).softmax(-1)[..., :-1].max(-1)  # [b n]
    scale = torch.tensor([(width, height, width, height) for width, height in sizes], device=probabilities.device)
    boxes: Tensor = corners(widened(detections.boxes)) * scale[:, None]  # [b n 4]
    return [
        [
            Box(labels[number], probability, *box)
            for probability, number, box in zip(*row, strict=True)
            if probability > threshold
        ]
        for row in zip(probabilities.tolist(), numbers.tolist(), boxes.tolist(), strict=True)
    ]
