"""Pictures of one thing each with its keypoints: as people keep them, and as rows.

Shapes: b pictures, h height, w width, p keypoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.box_rows import plain_picture
from qkv.data.boxes import checked_box
from qkv.data.columns import is_number
from qkv.data.framing import Corners, frame_of, framed
from qkv.data.image_files import picture_from
from qkv.data.images import Source
from qkv.data.plan import PlannedBatch
from qkv.data.preprocessing import Normalise
from qkv.data.rows import TensorBatch, single
from qkv.data.table import Problem, read_table
from qkv.data.token_rows import Ints
from qkv.errors import QkvError


@dataclass(frozen=True)
class PointedImage:
    """A picture, where the thing is (None: all of the picture), and its keypoints by name in pixels."""

    image: Source
    box: Corners | None
    points: dict[str, tuple[float, float]]  # those that are seen


@dataclass(frozen=True)
class PointedImages:
    items: Sequence[PointedImage]
    names: tuple[str, ...]  # of all keypoints, in the order of a model's maps
    problems: list[Problem] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.items)


def read_keypoint_table(path: Path | str, names: Sequence[str] | None = None) -> PointedImages:
    """Rows with `image`, `points` ({"nose": [x, y], …}, those that are seen) and `box` ([x0, y0, x1, y1] or null)."""
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    kinds = {"image": picture_from(folder), "points": _points(names), "box": _box}
    table = read_table(path, ["image", "points", "box"], kinds=kinds)
    items = [PointedImage(row["image"], row["box"] or None, row["points"]) for row in table.rows]
    found = tuple(names) if names is not None else tuple(sorted({name for item in items for name in item.points}))
    return PointedImages(items, found, table.problems)


def _points(names: Sequence[str] | None) -> Any:
    def kind(value: Any) -> dict[str, tuple[float, float]]:
        if not isinstance(value, dict) or not value:
            raise ValueError("holds no keypoints by name")
        for name, point in value.items():
            if not isinstance(point, list) or len(point) != 2 or not all(is_number(each) for each in point):
                raise ValueError(f"holds {name[:40]!r} without its two numbers x, y")
            if names is not None and name not in names:
                raise ValueError(f"holds {name[:40]!r}, which is none of {', '.join(names)}")
        return {name: (float(x), float(y)) for name, (x, y) in value.items()}

    return kind


def _box(value: Any) -> Corners | tuple[()]:
    """An empty one for none: a column that holds nothing at all would be a missing one."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError("holds no box [x0, y0, x1, y1]")
    return checked_box("", value).corners


@dataclass(frozen=True)
class KeypointBatch(TensorBatch):
    pixels: Tensor  # [b 3 h w] float32, as a model reads them
    points: Tensor  # [b p 2] float32: x and y as places in the frame, from 0 to 1
    seen: Tensor  # [b p] bool: points that are there and in the frame
    count: int  # of those


@dataclass(frozen=True, eq=False)
class KeypointRows:
    """All the pictures of a data set with their keypoints. A picture is read when its batch is made."""

    data: PointedImages
    size: tuple[int, int]  # height and width of what a model reads
    normalise: Normalise

    def __len__(self) -> int:
        return len(self.data)

    @property
    def original(self) -> Ints:
        return np.arange(len(self))

    @property
    def sizes(self) -> tuple[Ints, Ints]:
        """Every picture counts as one: batches of them are made by `RowCount`."""
        return single(np.ones(len(self), np.int64))

    def batch(self, planned: PlannedBatch) -> KeypointBatch:
        if planned.filler:
            raise QkvError("Pictures with keypoints make batches without filler rows: batch them by RowCount.")
        items = [self.data.items[int(row)] for row in planned.rows]
        pixels, points = [], torch.zeros(len(items), len(self.data.names), 2)
        seen = torch.zeros(points.shape[:2], dtype=torch.bool)
        for number, item in enumerate(items):
            picture = np.asarray(plain_picture(item.image))
            frame = frame_of(picture.shape[:2], item.box, self.size)
            pixels.append(torch.from_numpy(framed(picture, frame, self.size)).permute(2, 0, 1))
            for place, name in enumerate(self.data.names):
                if name in item.points:
                    across, down = frame.share(*item.points[name])
                    points[number, place] = torch.tensor([across, down])
                    seen[number, place] = 0 <= across <= 1 and 0 <= down <= 1
        return KeypointBatch(self.normalise(torch.stack(pixels)), points, seen, int(seen.sum()))
