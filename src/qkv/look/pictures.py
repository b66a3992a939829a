"""What an image model looks at, drawn over the picture, and what it has learned, drawn as pictures.

Shapes: r rows and c columns of the grid of patches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from qkv.look.colour import LEVELS, PAPER
from qkv.look.fonts import pen
from qkv.look.picture_maps import Floats, PictureRecord, patch_filters, position_similarity
from qkv.models.image_model import ImageModel

SIDE, SMALL, TINY = 336, 150, 56  # pixels: a picture, one of many heads, a filter
GAP = 8
_WHITE, _INK, _SOFT = (255, 255, 255), (29, 28, 34), (107, 104, 117)
DIM = 0.12  # of the picture's light that is left where nothing was looked at


def over_picture(picture: Image.Image, weights: Floats, side: int = SIDE) -> Image.Image:
    """The picture, as bright as it was looked at: the place with the greatest weight as it is, others darker. [r c]"""
    shown = enlarged(picture, side)
    highest = float(weights.max())
    light = Image.fromarray((weights / highest if highest > 0 else weights).astype(np.float32))
    smooth = np.asarray(light.resize(shown.size, Image.Resampling.BILINEAR)).clip(0, 1)
    lit = np.asarray(shown, np.float32) * (DIM + (1 - DIM) * smooth[..., None])
    return Image.fromarray(lit.astype(np.uint8))


def enlarged(picture: Image.Image, side: int) -> Image.Image:
    """The longer side gets this many pixels; small pictures keep their square pixels."""
    scale = side / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BICUBIC)


def sheet(tiles: Sequence[tuple[str, Image.Image]], across: int | None = None) -> Image.Image:
    """Pictures side by side, each with a line under it."""
    across = across or math.ceil(math.sqrt(len(tiles)))
    label = pen(15)
    wide = max(max(tile.width, label.width(name)) for name, tile in tiles) + GAP
    high = max(tile.height for _, tile in tiles) + GAP + (24 if any(name for name, _ in tiles) else 0)
    across = min(across, len(tiles))
    whole = Image.new("RGB", (wide * across + GAP, high * math.ceil(len(tiles) / across) + GAP), _WHITE)
    for place, (name, tile) in enumerate(tiles):
        x, y = GAP + place % across * wide, GAP + place // across * high
        whole.paste(tile, (x, y))
        if name:
            label.write(whole, (x, y + tile.height + 13), name, _SOFT)
    return whole


def draw_picture(record: PictureRecord) -> Image.Image:
    """The picture, and beside it what has flowed into the decision."""
    rollout = over_picture(record.picture, record.rollout())
    return sheet(
        [(record.said or record.name[-40:], enlarged(record.picture, SIDE)), ("attention rollout", rollout)], 2
    )


def draw_layer(record: PictureRecord, layer: int) -> Image.Image:
    """Every head of a layer over the picture."""
    heads = record.heads(layer)
    tiles = [(f"head {number + 1}", over_picture(record.picture, each, SMALL)) for number, each in enumerate(heads)]
    return sheet(tiles, min(len(tiles), 6))


def draw_filters(model: ImageModel) -> Image.Image:
    """The principal filters of the patches, each spread from black to white."""
    tiles = []
    for each in patch_filters(model):
        values = each if len(each) == 3 else np.repeat(each[:1], 3, 0)
        low, high = values.min(), values.max()
        spread = (values - low) / max(high - low, 1e-12) * 255
        image = Image.fromarray(spread.transpose(1, 2, 0).astype(np.uint8))
        tiles.append(("", image.resize((TINY, TINY), Image.Resampling.NEAREST)))
    return sheet(tiles, 7)


def draw_similarity(model: ImageModel) -> Image.Image:
    """For each patch, how like its position those of all patches are: paper for the opposite, ink for the same."""
    alike = position_similarity(model)
    rows, columns = alike.shape[:2]
    ramp = np.array(PAPER, np.uint8)
    steps = np.rint((alike + 1) / 2 * (LEVELS - 1)).astype(int).clip(0, LEVELS - 1)
    cell = max(1, min(8, 900 // max(rows, columns) ** 2))
    tile = np.ones((cell, cell, 1), np.uint8)
    whole = Image.new("RGB", (columns * (columns * cell + 3) + 3, rows * (rows * cell + 3) + 3), _WHITE)
    for row in range(rows):
        for column in range(columns):
            image = Image.fromarray(np.kron(ramp[steps[row, column]], tile).astype(np.uint8))
            whole.paste(image, (3 + column * (columns * cell + 3), 3 + row * (rows * cell + 3)))
    return whole


def draw_distances(record: PictureRecord) -> Image.Image:
    """How far every head looks, layer by layer: a point a head."""
    far = record.distances()
    width, height, left, foot = 460, 280, 56, 44
    image = Image.new("RGB", (width, height), _WHITE)
    brush, label = ImageDraw.Draw(image), pen(15)
    most = max(float(far.max()), 1e-6) * 1.08
    brush.line((left, 14, left, height - foot), fill=_SOFT)
    brush.line((left, height - foot, width - 14, height - foot), fill=_SOFT)
    step = (width - 14 - left) / len(far)
    for layer, heads in enumerate(far):
        x = left + (layer + 0.5) * step
        for value in heads:
            y = height - foot - float(value) / most * (height - foot - 14)
            brush.ellipse((x - 3, y - 3, x + 3, y + 3), fill=PAPER[LEVELS * 3 // 4])
        if len(far) <= 12 or layer % 4 == 0:
            label.write(image, (round(x), height - foot + 14), str(layer + 1), _SOFT, anchor="mm")
    label.write(image, (left - 6, 20), f"{most:.0f} px", _INK, anchor="rm")
    label.write(image, (left - 6, height - foot), "0", _INK, anchor="rm")
    label.write(image, ((left + width) // 2, height - 12), "layer", _SOFT, anchor="mm")
    return image
