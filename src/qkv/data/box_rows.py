"""Pictures with boxes as rows: read, prepared and padded batch by batch.

Shapes: b pictures, h height, w width, t objects of the fullest picture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from qkv.data.boxes import BoxedImages
from qkv.data.images import Source, read_image
from qkv.data.plan import PlannedBatch
from qkv.data.preprocessing import Preprocessing
from qkv.data.rows import TensorBatch, single
from qkv.data.token_rows import Ints
from qkv.errors import QkvError


class AnyBoxBatch(Protocol):
    """Pictures and the objects of each, as a model and its objective read them."""

    @property
    def pixels(self) -> Tensor: ...  # [b 3 h w] float32

    @property
    def real(self) -> Tensor | None: ...  # [b h w] bool: True where there is a picture and no padding

    @property
    def labels(self) -> Tensor: ...  # [b t] long, -1 where a picture has fewer objects

    @property
    def boxes(self) -> Tensor: ...  # [b t 4] float32: centre x, centre y, width and height, as shares

    @property
    def objects(self) -> int: ...


@dataclass(frozen=True)
class BoxBatch(TensorBatch):
    """Pictures of any sizes, side by side."""

    pixels: Tensor  # [b 3 h w] float32, as a model reads them
    real: Tensor | None  # [b h w] bool: True where there is a picture and no padding; None: everywhere
    labels: Tensor  # [b t] long, -1 where a picture has fewer objects
    boxes: Tensor  # [b t 4] float32: centre x, centre y, width and height, as shares of the picture's own
    objects: int  # in all pictures together


@dataclass(frozen=True, eq=False)
class BoxRows:
    """All the pictures of a data set with their objects. A picture is read when its batch is made."""

    data: BoxedImages
    preprocessing: Preprocessing
    mirrored: float = 0.0  # the share of pictures that are shown as in a mirror
    seed: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        if self.preprocessing.crop is not None:
            raise QkvError("A crop would move the boxes: prepare pictures with boxes without one.")

    def __len__(self) -> int:
        return len(self.data)

    @property
    def original(self) -> Ints:
        return np.arange(len(self))

    @property
    def sizes(self) -> tuple[Ints, Ints]:
        """Every picture counts as one: batches of them are made by `RowCount`."""
        return single(np.ones(len(self), np.int64))

    def batch(self, planned: PlannedBatch) -> BoxBatch:
        if planned.filler:
            raise QkvError("Pictures with boxes make batches without filler rows: batch them by RowCount.")
        items = [self.data.items[int(row)] for row in planned.rows]
        place = {name: number for number, name in enumerate(self.data.names)}
        pictures = [plain_picture(item.image) for item in items]
        draw = np.random.default_rng([self.seed, self.epoch, *(int(row) for row in planned.rows[:4])])
        turned = draw.random(len(items)) < self.mirrored
        pictures = [ImageOps.mirror(each) if turn else each for each, turn in zip(pictures, turned, strict=True)]
        inputs = self.preprocessing.batch(pictures)
        most = max(1, *(len(item.boxes) for item in items))
        labels = torch.full((len(items), most), -1)
        boxes = torch.zeros(len(items), most, 4)
        for number, (item, picture) in enumerate(zip(items, pictures, strict=True)):
            for slot, box in enumerate(item.boxes):
                labels[number, slot] = place[box.label]
                x0, y0, x1, y1 = shares(box.corners, picture.width, picture.height)
                x0, x1 = (1 - x1, 1 - x0) if turned[number] else (x0, x1)
                boxes[number, slot] = torch.tensor([(x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0])
        return BoxBatch(inputs.pixels, inputs.real, labels, boxes, sum(len(item.boxes) for item in items))

    def anew(self, seed: int = 0, mirrored: float = 0.5) -> Callable[[int], BoxRows]:
        """For `Batches`: the same pictures in every epoch, others of them mirrored."""
        return lambda epoch: replace(self, seed=seed, epoch=epoch, mirrored=mirrored)


def plain_picture(source: Source) -> Image.Image:
    """A picture as it is shown, upright, without notes that would turn it again."""
    return Image.fromarray(np.asarray(read_image(source)))


def shares(corners: tuple[float, float, float, float], width: int, height: int) -> tuple[float, float, float, float]:
    """Corners in pixels as shares of a picture, cut off where they leave it."""
    x0, y0, x1, y1 = corners
    across = [min(max(x / width, 0.0), 1.0) for x in (x0, x1)]
    down = [min(max(y / height, 0.0), 1.0) for y in (y0, y1)]
    return across[0], down[0], across[1], down[1]
