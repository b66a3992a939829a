"""Pictures with boxes, all of one size and ready in memory: for trainings that read each of them many times.

Shapes: n pictures, b of a batch, h height, w width, t objects of the fullest picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from qkv.data.box_rows import plain_picture, shares
from qkv.data.boxes import Box, BoxedImage, BoxedImages
from qkv.data.image_rows import Pixels
from qkv.data.plan import PlannedBatch
from qkv.data.preprocessing import FILTERS, Normalise
from qkv.data.rows import TensorBatch, single
from qkv.data.safe_path import safe_path
from qkv.data.token_rows import Ints
from qkv.errors import QkvError

AT_ONCE = 250  # pictures that a process makes before it hands them over
Made = tuple[Pixels, list[tuple[Box, ...]]]


@dataclass(frozen=True, eq=False)
class StoredBoxes:
    """Pictures of one size with the objects of each, in pixels of these pictures."""

    pixels: Pixels  # [n h w 3]
    boxes: Sequence[tuple[Box, ...]]  # [n]
    names: tuple[str, ...]  # of all classes, in the order of a model's logits

    def __post_init__(self) -> None:
        if self.pixels.dtype != np.uint8 or self.pixels.ndim != 4 or self.pixels.shape[3] != 3 or not len(self.pixels):
            raise QkvError(
                f"Pictures must be numbers of 8 bits [n h w 3], at least one, not {self.pixels.dtype} "
                f"{list(self.pixels.shape)}."
            )
        if len(self.boxes) != len(self.pixels):
            raise QkvError(f"There are {len(self.pixels)} pictures, and the objects of {len(self.boxes)}.")
        if strange := sorted({box.label for some in self.boxes for box in some} - set(self.names)):
            raise QkvError(f"A picture has an object {strange[0]!r}, which is none of {', '.join(self.names)}.")

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        height, width = self.pixels.shape[1:3]
        return height, width

    def some(self, places: Sequence[int]) -> StoredBoxes:
        return replace(self, pixels=self.pixels[list(places)], boxes=[self.boxes[place] for place in places])

    def as_images(self) -> BoxedImages:
        """The same as pictures that Pillow has open, one by one."""
        items = [BoxedImage(Image.fromarray(each), some) for each, some in zip(self.pixels, self.boxes, strict=True)]
        return BoxedImages(items, self.names)


def store_boxes(data: BoxedImages, size: tuple[int, int], *, workers: int = 1) -> StoredBoxes:
    """All pictures read, or composed, and resized to `size` (height, width), by so many processes.

    With more than one worker the pictures must be such as can be sent to another process: files, content, a `Composer`.
    """
    firsts = range(0, len(data), AT_ONCE)
    if workers < 1:
        raise QkvError(f"Pictures are made by one process at least, not by {workers}.")
    if workers == 1:
        made = [_made(data.items, first, size) for first in firsts]
    else:
        with safe_path(), ProcessPoolExecutor(workers, get_context("spawn"), _prepare, (data.items, size)) as pool:
            made = list(pool.map(_made_elsewhere, firsts))
    pixels = np.concatenate([pixels for pixels, _ in made])
    return StoredBoxes(pixels, [boxes for _, some in made for boxes in some], data.names)


_work: dict[str, Any] = {}  # in a worker process


def _prepare(items: Sequence[BoxedImage], size: tuple[int, int]) -> None:
    _work["items"], _work["size"] = items, size


def _made_elsewhere(first: int) -> Made:
    return _made(_work["items"], first, _work["size"])


def _made(items: Sequence[BoxedImage], first: int, size: tuple[int, int]) -> Made:
    """Some pictures, from the one with this number on."""
    height, width = size
    pixels, boxes = [], []
    for item in items[first : first + AT_ONCE]:
        picture = plain_picture(item.image)
        across, down = width / picture.width, height / picture.height
        if picture.size != (width, height):
            picture = picture.resize((width, height), FILTERS["bilinear"])
        pixels.append(np.asarray(picture))
        boxes.append(
            tuple(
                replace(box, x0=box.x0 * across, y0=box.y0 * down, x1=box.x1 * across, y1=box.y1 * down)
                for box in item.boxes
            )
        )
    return np.stack(pixels), boxes


@dataclass(frozen=True)
class StoredBoxBatch(TensorBatch):
    """Some of them; what a model reads is made where the batch is."""

    stored: Tensor  # [b 3 h w] uint8
    labels: Tensor  # [b t] long, -1 where a picture has fewer objects
    upright: Tensor  # [b t 4] float32: centre x, centre y, width and height, as shares, before any mirror
    turned: Tensor  # [b] bool: shown as in a mirror
    objects: int
    normalise: Normalise
    real: None = None

    @property
    def pixels(self) -> Tensor:
        """[b 3 h w] float32"""
        turned = self.turned[:, None, None, None]
        return self.normalise(torch.where(turned, self.stored.flip(-1), self.stored))

    @property
    def boxes(self) -> Tensor:
        """[b t 4]"""
        across = torch.where(self.turned[:, None], 1 - self.upright[..., 0], self.upright[..., 0])
        return torch.cat([across[..., None], self.upright[..., 1:]], -1)


@dataclass(frozen=True, eq=False)
class StoredBoxRows:
    """Rows of stored pictures; with `anew` others are mirrored in every epoch."""

    data: StoredBoxes
    normalise: Normalise
    labels: Ints  # [n t]
    places: NDArray[np.float32]  # [n t 4]
    mirrored: float = 0.0
    seed: int = 0
    epoch: int = 0

    @classmethod
    def of(cls, data: StoredBoxes, normalise: Normalise) -> StoredBoxRows:
        number = {name: place for place, name in enumerate(data.names)}
        most = max(1, *(len(some) for some in data.boxes))
        labels = np.full((len(data), most), -1)
        places = np.zeros((len(data), most, 4), np.float32)
        height, width = data.size
        for row, some in enumerate(data.boxes):
            for slot, box in enumerate(some):
                x0, y0, x1, y1 = shares(box.corners, width, height)
                labels[row, slot] = number[box.label]
                places[row, slot] = (x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0
        return cls(data, normalise, labels, places)

    def __len__(self) -> int:
        return len(self.data)

    @property
    def original(self) -> Ints:
        return np.arange(len(self))

    @property
    def sizes(self) -> tuple[Ints, Ints]:
        """Every picture counts as one: batches of them are made by `RowCount`."""
        return single(np.ones(len(self), np.int64))

    def batch(self, planned: PlannedBatch) -> StoredBoxBatch:
        if planned.filler:
            raise QkvError("Pictures with boxes make batches without filler rows: batch them by RowCount.")
        rows = planned.rows
        draw = np.random.default_rng([self.seed, self.epoch, *(int(row) for row in rows[:4])])
        pixels = torch.from_numpy(self.data.pixels[rows]).permute(0, 3, 1, 2).contiguous()
        labels = self.labels[rows]
        return StoredBoxBatch(
            pixels,
            torch.from_numpy(labels),
            torch.from_numpy(self.places[rows]),
            torch.from_numpy(draw.random(len(rows)) < self.mirrored),
            int((labels >= 0).sum()),
            self.normalise,
        )

    def anew(self, seed: int = 0, mirrored: float = 0.5) -> Callable[[int], StoredBoxRows]:
        """For `Batches`: the same pictures in every epoch, others of them mirrored."""
        return lambda epoch: replace(self, seed=seed, epoch=epoch, mirrored=mirrored)
