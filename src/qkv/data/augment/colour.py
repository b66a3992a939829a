"""What colours the pixels of a picture have: brighter, paler, sharper, fewer. Rounded where Pillow rounds.

Shapes: b pictures, c channels (1 or 3), h height, w width, v the 256 values of a channel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.augment.steps import beside, in_bytes
from qkv.data.doubles import doubled
from qkv.errors import QkvError

LIGHT = (19595, 38470, 7471)  # of 65536: how much of red, green and blue is seen as brightness


def grey(pixels: Tensor) -> Tensor:
    """How bright each pixel is. [b c h w] → [b 1 h w], whole numbers from 0 to 255"""
    if pixels.shape[1] == 1:
        return pixels.int()
    red, green, blue = pixels.int().unbind(1)
    return ((LIGHT[0] * red + LIGHT[1] * green + LIGHT[2] * blue + 0x8000) >> 16)[:, None]


def blended(plain: Tensor, pixels: Tensor, factor: Tensor) -> Tensor:
    """From `plain` (factor 0) over the picture (1) to beyond it (2). [b]"""
    there, here = plain.float(), pixels.float()
    return in_bytes(there + factor[:, None, None, None] * (here - there))


def brightness(pixels: Tensor, factor: Tensor) -> Tensor:
    """0 is black."""
    return blended(torch.zeros_like(pixels), pixels, factor)


def contrast(pixels: Tensor, factor: Tensor) -> Tensor:
    """0 is one grey, the mean of the picture."""
    mean = (doubled(grey(pixels)).mean((1, 2, 3), keepdim=True) + 0.5).floor()
    return blended(mean.float().to(pixels.device), pixels, factor)


def saturation(pixels: Tensor, factor: Tensor) -> Tensor:
    """0 is a picture of greys."""
    return blended(grey(pixels), pixels, factor)


def sharpness(pixels: Tensor, factor: Tensor) -> Tensor:
    """0 is a picture in which each pixel is a mean of its neighbours; the rim stays."""
    channels = pixels.shape[1]
    kernel = torch.ones(channels, 1, 3, 3, device=pixels.device)
    kernel[:, :, 1, 1] = 5
    smooth = pixels.float()
    if min(pixels.shape[-2:]) >= 3:
        inner = F.conv2d(smooth, kernel, groups=channels)  # whole numbers up to 3315: exact in any precision of float32
        smooth = smooth.clone()
        smooth[:, :, 1:-1, 1:-1] = (inner / 13 + 0.5).floor()
    return blended(smooth, pixels, factor)


def posterised(pixels: Tensor, bits: Tensor) -> Tensor:
    """Only the first bits of each value. [b] whole numbers from 0 to 8"""
    mask = (256 - (1 << (8 - bits.int()))).to(torch.uint8)
    return pixels & mask[:, None, None, None]


def solarised(pixels: Tensor, threshold: Tensor) -> Tensor:
    """Values from the threshold on are turned into their opposite. [b]"""
    return torch.where(pixels.float() < threshold[:, None, None, None], pixels, 255 - pixels)


def autocontrast(pixels: Tensor) -> Tensor:
    """Each channel spread from 0 to 255."""
    wide = doubled(pixels)
    low, high = wide.amin((2, 3), keepdim=True), wide.amax((2, 3), keepdim=True)
    scale = torch.full_like(high, 255) / (high - low).clamp(min=1)  # 255 / x would be 255 times 1 / x, rounded twice
    spread = in_bytes(wide * scale + -low * scale)
    return torch.where(high > low, spread, pixels.to(wide.device)).to(pixels.device)


def equalised(pixels: Tensor) -> Tensor:
    """Each channel changed so that all values are about as frequent."""
    images, channels = pixels.shape[:2]
    values = pixels.flatten(2).long()  # [b c h·w]
    counts = torch.zeros(images, channels, 256, dtype=torch.long, device=pixels.device)
    counts.scatter_add_(2, values, torch.ones_like(values))  # [b c v]
    last = values.amax(2, keepdim=True)
    step = (values.shape[2] - counts.gather(2, last)) // 255  # [b c 1]
    before = counts.cumsum(2) - counts  # of smaller values
    table = ((step // 2 + before) // step.clamp(min=1)).clamp(max=255)
    changed = table.gather(2, values).to(torch.uint8)
    return torch.where(step > 0, changed, pixels.flatten(2)).view_as(pixels)


def turned(pixels: Tensor, turn: Tensor) -> Tensor:
    """Hues moved around the circle of colours by this share of it. [b]"""
    if pixels.shape[1] == 1:
        return pixels
    values = pixels.float() / 255
    red, green, blue = values.unbind(1)
    high, low = values.amax(1), values.amin(1)  # [b h w]
    spread = high - low
    part = spread.clamp(min=1e-8)
    hue = torch.where(
        high == red,
        (green - blue) / part % 6,
        torch.where(high == green, (blue - red) / part + 2, (red - green) / part + 4),
    )
    hue = hue / 6 + turn[:, None, None]  # [b h w]
    # A channel falls from the highest value where the hue is its own to the lowest where it is the opposite.
    channels = []
    for offset in (5, 3, 1):
        place = (offset + hue * 6) % 6
        channels.append(high - spread * torch.minimum(place, 4 - place).clamp(0, 1))
    return in_bytes(torch.stack(channels, 1) * 255 + 0.5)


@dataclass(frozen=True, kw_only=True)
class ColourJitter:
    """Brightness, contrast and saturation changed by up to these shares, and hue by this part of the circle.

    The four come in an order that is drawn for each batch.
    """

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.0

    def __post_init__(self) -> None:
        if min(self.brightness, self.contrast, self.saturation) < 0 or not 0 <= self.hue <= 0.5:
            raise QkvError(f"Colours change by shares from 0 on, and hue by at most half of the circle, not {self}.")

    def __call__(self, pixels: Tensor, draw: np.random.Generator) -> Tensor:
        ways = ((brightness, self.brightness), (contrast, self.contrast), (saturation, self.saturation))
        for number in draw.permutation(4):
            if number < 3:
                change, most = ways[number]
                factor = draw.uniform(max(0.0, 1 - most), 1 + most, len(pixels))
                pixels = change(pixels, beside(factor, pixels)) if most else pixels
            elif self.hue:
                pixels = turned(pixels, beside(draw.uniform(-self.hue, self.hue, len(pixels)), pixels))
        return pixels
