"""Scenes with known boxes: real cut-out pictures, such as emoji, pasted on real backgrounds.

Shapes: h height, w width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from qkv.data.boxes import Box, BoxedImage
from qkv.errors import QkvError

Pixels = NDArray[np.uint8]
SEEN = 128  # opacity from which on a pixel belongs to an object
TRIES = 20  # places that are tried for an object before it is left out


@dataclass(frozen=True, eq=False)
class Cutout:
    """A thing without what was around it."""

    name: str
    pixels: Pixels  # [h w 4], the last channel its opacity

    def __post_init__(self) -> None:
        if self.pixels.dtype != np.uint8 or self.pixels.ndim != 3 or self.pixels.shape[2] != 4:
            raise QkvError(f"A cutout is [h w 4] numbers of 8 bits, not {list(self.pixels.shape)} {self.pixels.dtype}.")
        if not (self.pixels[..., 3] >= SEEN).any():
            raise QkvError(f"The cutout {self.name} has nothing to be seen: all of it is transparent.")


@dataclass(frozen=True, eq=False, kw_only=True)
class Composer(Sequence[BoxedImage]):
    """So many scenes, each made when it is asked for and always the same: by its number and the seed.

    The objects of a scene differ in kind, size and place, and hide each other in part at most.
    """

    cutouts: Sequence[Cutout]
    backgrounds: Sequence[Pixels]  # [h w 3] each
    scenes: int
    size: tuple[int, int] = (128, 128)  # height and width
    objects: tuple[int, int] = (1, 5)  # least and most of a scene; fewer where there is no room
    scale: tuple[float, float] = (0.15, 0.5)  # the longer side of an object, as a share of the scene's shorter one
    hidden: float = 0.25  # the largest share of an object that another may lie on
    turned: float = 0.0  # degrees that an object may be turned by, either way
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.cutouts or not self.backgrounds or self.scenes < 1:
            raise QkvError("A scene needs cutouts, backgrounds and a number of at least 1.")
        if not 0 <= self.objects[0] <= self.objects[1] or not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise QkvError(
                "The least and the most objects must be in order, and so must the scales, from above 0 to 1."
            )
        if not 0 <= self.turned <= 180:
            raise QkvError(f"An object may be turned by 0 to 180 degrees, not by {self.turned:g}.")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({cutout.name for cutout in self.cutouts}))

    def __len__(self) -> int:
        return self.scenes

    @overload
    def __getitem__(self, number: int) -> BoxedImage: ...
    @overload
    def __getitem__(self, number: slice) -> list[BoxedImage]: ...
    def __getitem__(self, number: int | slice) -> BoxedImage | list[BoxedImage]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(self.scenes))]
        if not -self.scenes <= number < self.scenes:
            raise IndexError(number)
        draw = np.random.default_rng([self.seed, number % self.scenes])
        scene = self._background(draw)
        boxes: list[Box] = []
        for _ in range(int(draw.integers(self.objects[0], self.objects[1], endpoint=True))):
            cutout = self.cutouts[int(draw.integers(len(self.cutouts)))]
            layer = self._sized(cutout, draw)
            if (place := self._place(layer, boxes, draw)) is not None:
                scene.paste(layer, place, layer)
                boxes.append(_box(cutout.name, layer, place))
        return BoxedImage(scene, tuple(boxes))

    def _background(self, draw: np.random.Generator) -> Image.Image:
        """A part of a background that has the shape of the scene, made as large as the scene."""
        height, width = self.size
        whole = Image.fromarray(self.backgrounds[int(draw.integers(len(self.backgrounds)))])
        most = min(whole.width / width, whole.height / height)
        part = most * float(draw.uniform(0.6, 1.0))
        across, down = width * part, height * part
        left, top = float(draw.uniform(0, whole.width - across)), float(draw.uniform(0, whole.height - down))
        box = (left, top, min(left + across, whole.width), min(top + down, whole.height))
        return whole.resize((width, height), Image.Resampling.BILINEAR, box=box)

    def _sized(self, cutout: Cutout, draw: np.random.Generator) -> Image.Image:
        layer = Image.fromarray(cutout.pixels)
        if self.turned:
            angle = float(draw.uniform(-self.turned, self.turned))
            layer = layer.rotate(angle, Image.Resampling.BICUBIC, expand=True)
        layer = _trimmed(layer)
        side = float(draw.uniform(*self.scale)) * min(self.size)
        factor = side / max(layer.size)
        sides = tuple(max(2, round(each * factor)) for each in layer.size)
        return _trimmed(layer.resize((sides[0], sides[1]), Image.Resampling.LANCZOS))

    def _place(self, layer: Image.Image, boxes: Sequence[Box], draw: np.random.Generator) -> tuple[int, int] | None:
        """A corner where the layer lies inside the scene and on little of the others; None where none was found."""
        height, width = self.size
        if layer.width > width or layer.height > height:
            return None
        for _ in range(TRIES):
            left = int(draw.integers(0, width - layer.width, endpoint=True))
            top = int(draw.integers(0, height - layer.height, endpoint=True))
            new = (left, top, left + layer.width, top + layer.height)
            if all(_shared(new, box.corners) <= self.hidden for box in boxes):
                return left, top
        return None


def _seen(opacity: int) -> int:
    return 255 if opacity >= SEEN else 0


def _trimmed(layer: Image.Image) -> Image.Image:
    """Without the rows and columns at its edges that show nothing."""
    around = layer.getchannel("A").point(_seen).getbbox()
    return layer if around is None else layer.crop(around)


def _box(name: str, layer: Image.Image, place: tuple[int, int]) -> Box:
    """Around what is seen of a layer."""
    x0, y0, x1, y1 = layer.getchannel("A").point(_seen).getbbox() or (0, 0, *layer.size)
    return Box(name, 1.0, place[0] + x0, place[1] + y0, place[0] + x1, place[1] + y1)


def _shared(one: Sequence[float], other: Sequence[float]) -> float:
    """What two boxes have in common, as a share of the smaller."""
    across = min(one[2], other[2]) - max(one[0], other[0])
    down = min(one[3], other[3]) - max(one[1], other[1])
    smaller = min((each[2] - each[0]) * (each[3] - each[1]) for each in (one, other))
    return max(across, 0) * max(down, 0) / smaller
