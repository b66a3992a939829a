"""From a picture to what an image model reads, as the model was published: resize, crop, rescale, normalise, pad.

Pixels are resized in 8 bits by Pillow and numbers are rounded where the reference processors round them, so that the
result is theirs to the last bit.

Shapes: b pictures, c channels, h height, w width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from qkv.data.doubles import doubled
from qkv.data.images import MOST_PIXELS, Source, read_image
from qkv.data.kept_tensors import keeping_tensors
from qkv.errors import QkvError

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "lanczos": Image.Resampling.LANCZOS,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
}

HALF = (0.5, 0.5, 0.5)  # pixels from -1 to 1
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


class Sizing(Protocol):
    """How large a picture becomes."""

    def of(self, height: int, width: int) -> tuple[int, int]:
        """The new height and width."""


@dataclass(frozen=True)
class Exactly:
    """One size for all, whatever it does to the shape of things."""

    height: int
    width: int

    def of(self, height: int, width: int) -> tuple[int, int]:
        return self.height, self.width


@dataclass(frozen=True)
class ShortestEdge:
    """The shorter side gets this length, and the longer one follows."""

    edge: int

    def of(self, height: int, width: int) -> tuple[int, int]:
        longer = int(self.edge * max(height, width) / min(height, width))
        return (longer, self.edge) if width <= height else (self.edge, longer)


@dataclass(frozen=True)
class EdgesUpTo:
    """The shorter side gets this length, unless the longer one would pass its own: as DETR reads."""

    shortest: int
    longest: int

    def of(self, height: int, width: int) -> tuple[int, int]:
        short, long = min(height, width), max(height, width)
        wanted = float(self.shortest)
        if long / short * self.shortest > self.longest:
            wanted = self.longest * short / long
        edge = round(wanted)
        if short == edge:
            return height, width
        # DIFFERS from the reference, which has no size for a picture so thin that its shorter side would vanish.
        edge, longer = max(1, edge), max(1, int(wanted * long / short))
        return (longer, edge) if width < height else (edge, longer)


class Cropping(Protocol):
    """What is kept of a picture: this much of its middle."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""

    def corner(self, height: int, width: int) -> tuple[int, int]:
        """Top and left of what is kept; below 0 where the picture is too small."""


@dataclass(frozen=True)
class Centre:
    """The middle; where nothing is exactly in the middle, half a pixel up and left of it."""

    height: int
    width: int

    @property
    def size(self) -> tuple[int, int]:
        return self.height, self.width

    def corner(self, height: int, width: int) -> tuple[int, int]:
        return (height - self.height) // 2, (width - self.width) // 2


@dataclass(frozen=True)
class RoundedCentre(Centre):
    """The middle as timm and torchvision have it: half a pixel is rounded to the even side."""

    def corner(self, height: int, width: int) -> tuple[int, int]:
        top, left = height - self.height, width - self.width
        # What is too small is padded first, and the padding is rounded down on its near side.
        return (
            round(top / 2) if top >= 0 else -(-top // 2),
            round(left / 2) if left >= 0 else -(-left // 2),
        )


@dataclass(frozen=True)
class Normalise:
    """8-bit numbers times `scale`, then (x − mean) / std for each channel: three for colours, one for greys."""

    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or len(self.mean) not in (1, 3) or not all(value > 0 for value in self.std):
            raise QkvError(
                "A normalisation needs a mean and a standard deviation above 0 for each of 3 channels, or 1."
            )

    def __call__(self, pixels: Tensor) -> Tensor:
        """[… c h w] uint8 → float32, on whatever device the pixels are."""
        # The products are rounded once from double precision, as the reference has them.
        parts = exact_parts(self.scale) if pixels.device.type != "cpu" and pixels.dtype == torch.uint8 else None
        if parts is None:
            return self.of_values((doubled(pixels) * self.scale).float().to(pixels.device))
        high, low = parts
        return self.of_values((pixels * high).add_(pixels, alpha=low))  # the same, in half the bytes

    def of_values(self, values: Tensor) -> Tensor:
        """The same for what is scaled already. [… c h w] float32"""
        if any(self.mean):
            values = values - by_channel(self.mean, values.device)
        return values if set(self.std) == {1.0} else values / by_channel(self.std, values.device)

    def undone(self, images: Tensor) -> Tensor:
        """Back to what was scaled and not yet normalised. [… c h w] float32"""
        mean, std = (by_channel(each, images.device) for each in (self.mean, self.std))
        return images * std + mean


@lru_cache(maxsize=64)
def exact_parts(scale: float) -> tuple[float, float] | None:
    """Two parts of a number, of which p·high + p·low in float32 is p·scale rounded once, for all p of 8 bits.

    p·high is exact, for 16 bits are enough for it; None, should the sum for some p be rounded to another number.
    """
    mantissa, exponent = math.frexp(scale)
    high = math.ldexp(round(math.ldexp(mantissa, 16)), exponent - 16)
    low = float(np.float32(scale - high))
    pixels = np.arange(256.0)
    rounded = (pixels * low).astype(np.float32)  # or not rounded before it is added, as a device may have it
    sums = [(pixels * high + each).astype(np.float32) for each in (rounded.astype(np.float64), pixels * low)]
    exact = (pixels * scale).astype(np.float32)
    return (high, low) if all(np.array_equal(each, exact) for each in sums) else None


@keeping_tensors
def by_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """[c 1 1]"""
    with torch.inference_mode(False):
        return torch.tensor(values, device=device)[:, None, None]


@dataclass(frozen=True)
class ImageInputs:
    """What a model reads of several pictures."""

    pixels: Tensor  # [b c h w] float32
    real: Tensor | None  # [b h w] bool: True where there is a picture and no padding; None: everywhere

    def to(self, device: torch.device | str) -> ImageInputs:
        return ImageInputs(self.pixels.to(device), None if self.real is None else self.real.to(device))


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The way of a picture into a model; a step that is None is left out.

    A model of greys is one whose normalisation has one channel.
    """

    resize: Sizing | None = None
    filter: str = "bilinear"  # one of FILTERS
    crop: Cropping | None = None
    normalise: Normalise = Normalise()
    padding: str = "none"  # or "to largest": pictures of several sizes, with zeros below and right of the smaller ones

    def __post_init__(self) -> None:
        if self.filter not in FILTERS:
            raise QkvError(f"There is no filter {self.filter!r}: there are {', '.join(FILTERS)}.")
        if self.padding not in ("none", "to largest"):
            raise QkvError(f"Padding is none or to largest, not {self.padding!r}.")

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of every result; None where they depend on the picture."""
        if self.crop is not None:
            return self.crop.size
        return (self.resize.height, self.resize.width) if isinstance(self.resize, Exactly) else None

    def at(self, side: int) -> Preprocessing:
        """The same way for squares of another size: as much of the picture is seen, in more pixels or in fewer."""
        if isinstance(self.crop, Centre):
            crop = replace(self.crop, height=side, width=side)
            if isinstance(self.resize, ShortestEdge):
                edge = round(self.resize.edge * side / min(self.crop.size))
                return replace(self, resize=ShortestEdge(edge), crop=crop)
            if isinstance(self.resize, Exactly):
                high, wide = (round(each * side / min(self.crop.size)) for each in self.resize.of(0, 0))
                return replace(self, resize=Exactly(high, wide), crop=crop)
        if self.crop is None and isinstance(self.resize, Exactly):
            return replace(self, resize=Exactly(side, side))
        raise QkvError("What this model reads has no one size that another could take the place of.")

    def pixels(self, source: Source) -> Tensor:
        """A picture resized and cropped. → [c h w] uint8"""
        image = read_image(source)
        if len(self.normalise.mean) == 1:
            image = image.convert("L")
        if self.resize is not None:
            height, width = self.resize.of(image.height, image.width)
            if height * width > MOST_PIXELS:
                image = self._only_what_is_kept(image, height, width)
            else:
                image = image.resize((width, height), FILTERS[self.filter])
        array = np.array(image)
        array = array[..., None] if array.ndim == 2 else array  # [h w c]
        if self.crop is not None:
            array = _cropped(array, self.crop)
        return torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1)))

    def tensor(self, source: Source) -> Tensor:
        """A picture as a model reads it. → [c h w] float32"""
        return self.normalise(self.pixels(source))

    def batch(self, sources: Sequence[Source]) -> ImageInputs:
        """Several pictures side by side."""
        if not sources:
            raise QkvError("There is no picture: at least one is needed.")
        tensors = [self.tensor(source) for source in sources]
        sizes = {tuple(tensor.shape[1:]) for tensor in tensors}
        if self.padding == "none":
            if len(sizes) > 1:
                raise QkvError("Pictures of several sizes make no batch here: resize them, or take them one by one.")
            return ImageInputs(torch.stack(tensors), None)
        height, width = (max(side) for side in zip(*sizes, strict=True))
        pixels = torch.zeros(len(tensors), tensors[0].shape[0], height, width)
        real = torch.zeros(len(tensors), height, width, dtype=torch.bool)
        for number, tensor in enumerate(tensors):
            pixels[number, :, : tensor.shape[1], : tensor.shape[2]] = tensor
            real[number, : tensor.shape[1], : tensor.shape[2]] = True
        return ImageInputs(pixels, real)

    def _only_what_is_kept(self, image: Image.Image, height: int, width: int) -> Image.Image:
        """A picture so thin that it would be huge once resized: only the stretch that the crop keeps is made."""
        if self.crop is None:
            raise QkvError(f"A picture of {image.width} × {image.height} would become {width:,} × {height:,}: crop it.")
        top, left = (max(0, side) for side in self.crop.corner(height, width))
        kept_height, kept_width = min(height - top, self.crop.size[0]), min(width - left, self.crop.size[1])
        across, down = image.width / width, image.height / height  # pixels of the picture for each new one
        box = (left * across, top * down, (left + kept_width) * across, (top + kept_height) * down)
        return image.resize((kept_width, kept_height), FILTERS[self.filter], box=box)


def _cropped(array: np.ndarray, crop: Cropping) -> np.ndarray:
    """The middle of a picture, with black around it where it is too small. [h w c] → [h w c]"""
    height, width = array.shape[:2]
    top, left = crop.corner(height, width)
    wanted_height, wanted_width = crop.size
    if height < wanted_height or width < wanted_width:
        above, before = (max(0, -side) for side in (top, left))
        below = max(0, wanted_height - height - above)
        after = max(0, wanted_width - width - before)
        array = np.pad(array, ((above, below), (before, after), (0, 0)))
        top, left = max(0, top), max(0, left)
    return array[top : top + wanted_height, left : left + wanted_width]
