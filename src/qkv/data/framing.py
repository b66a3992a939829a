"""The part of a picture that a model of one person or thing looks at, and keypoints in it.

Places in a frame are shares of its sides: 0 is the middle of its first pixel, 1 that of its last, so that they mean the
same in the picture, in what the model reads and in the maps that it draws, however fine these are. [huang2020 §3.2]

Shapes: h height, w width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkv.errors import QkvError

Corners = tuple[float, float, float, float]
AROUND = 1.25  # how much larger than its box a thing's frame is
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Keypoint:
    """A named point of a thing, in pixels of the upright picture, and how sure it is (the height of its map's peak)."""

    name: str
    probability: float
    x: float
    y: float


@dataclass(frozen=True)
class Frame:
    """A rectangle in pixels of a picture, which may reach beyond it."""

    left: float
    top: float
    width: float
    height: float

    def share(self, x: float, y: float) -> tuple[float, float]:
        """A point of the picture as a place in the frame."""
        return (x - self.left) / self.width, (y - self.top) / self.height

    def point(self, across: float, down: float) -> tuple[float, float]:
        """And back."""
        return self.left + across * self.width, self.top + down * self.height


def frame_around(corners: tuple[float, float, float, float], size: tuple[int, int], around: float = AROUND) -> Frame:
    """The smallest frame of the shape `size` (height, width) around a box, and `around` times as large as that."""
    x0, y0, x1, y1 = corners
    width, height = x1 - x0, y1 - y0
    if width <= 0 or height <= 0:
        raise QkvError(f"A box without an inside has no frame: {x0:g}, {y0:g}, {x1:g}, {y1:g}.")
    shape = size[1] / size[0]
    width, height = max(width, shape * height) * around, max(height, width / shape) * around
    return Frame((x0 + x1) / 2 - width / 2, (y0 + y1) / 2 - height / 2, width, height)


def framed(picture: Pixels, frame: Frame, size: tuple[int, int]) -> Pixels:
    """What a frame shows, at another size (height, width), bilinearly; black beyond the picture. [h w 3] → [*size 3]"""
    shown: NDArray[np.float64] = picture.astype(np.float64)
    for axis, (start, length) in enumerate(((frame.top, frame.height), (frame.left, frame.width))):
        places = np.arange(size[axis], dtype=np.float64) * (length / max(size[axis] - 1, 1)) + start
        shown = _sampled(shown, axis, places)
    return np.floor(shown + 0.5).astype(np.uint8)


def _sampled(picture: NDArray[np.float64], axis: int, places: NDArray[np.float64]) -> NDArray[np.float64]:
    """The picture at these places along one of its axes, between its pixels too, and 0 beyond them."""
    last = picture.shape[axis] - 1
    before = np.floor(places).clip(0, last).astype(np.int64)
    share = np.expand_dims((places - before).clip(0, 1), tuple(each for each in range(3) if each != axis))
    inside = np.expand_dims((places >= 0) & (places <= last), tuple(each for each in range(3) if each != axis))
    after = picture.take((before + 1).clip(max=last), axis)
    return (picture.take(before, axis) * (1 - share) + after * share) * inside


def frame_of(picture: Sequence[int], box: Corners | None, size: tuple[int, int]) -> Frame:
    """Around a box; without one, around the whole picture (height, width), and no larger."""
    if box is not None:
        return frame_around(box, size)
    height, width = picture
    return frame_around((0.0, 0.0, float(width), float(height)), size, around=1.0)
