"""Pictures with what was found in them: boxes with their labels, and keypoints."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from PIL import Image, ImageDraw

from qkv.data.box_rows import plain_picture
from qkv.data.boxes import Box
from qkv.data.images import Source
from qkv.look.colour import Rgb, ink_on
from qkv.look.fonts import pen

# Light and dark in turn, so that neighbours can be told apart without seeing red from green.
COLOURS: tuple[Rgb, ...] = (
    (230, 159, 0), (0, 114, 178), (240, 228, 66), (213, 94, 0), (86, 180, 233), (0, 110, 80), (204, 121, 167),
    (120, 60, 160), (150, 220, 110), (160, 30, 60), (255, 190, 190), (60, 70, 90), (0, 200, 190),
)  # fmt: skip
LETTERS = 24  # of a label that are shown
SMALLEST = 320  # pixels of the shorter side below which a picture is drawn larger, so that labels can be read


def colour_of(label: str) -> Rgb:
    """The same for a label in every picture."""
    return COLOURS[zlib.crc32(label.encode()) % len(COLOURS)]


def draw_boxes(source: Source, boxes: Sequence[Box]) -> Image.Image:
    """The picture with a frame around every object and its label and probability on it; likelier ones lie on top."""
    picture, factor = _large_enough(source)
    line = max(2, round(min(picture.size) / 160))
    letters = pen(max(12, round(min(picture.size) / 28)))
    brush = ImageDraw.Draw(picture)
    for box in sorted(boxes, key=lambda box: box.probability):
        colour = colour_of(box.label)
        x0, y0, x1, y1 = (round(each * factor) for each in box.corners)
        x0, x1 = (min(max(each, 0), picture.width - 1) for each in (x0, x1))
        y0, y1 = (min(max(each, 0), picture.height - 1) for each in (y0, y1))
        brush.rectangle((x0, y0, max(x0, x1), max(y0, y1)), outline=colour, width=line)
        label = box.label if len(box.label) <= LETTERS else f"{box.label[: LETTERS - 1]}…"
        text = label if box.probability == 1.0 else f"{label} {box.probability:.2f}"
        high = round(letters.size * 1.5)
        left = max(0, min(x0, picture.width - letters.width(text) - 8))
        top = y0 - high if y0 >= high else y0
        brush.rectangle((left, top, left + letters.width(text) + 8, top + high), fill=colour)
        letters.write(picture, (left + 4, top + high // 2), text, ink_on(colour))
    return picture


def draw_points(source: Source, points: Sequence[tuple[str, float, float, float]], least: float = 0.0) -> Image.Image:
    """The picture with a dot at every keypoint (name, probability, x, y) that is at least so likely."""
    picture, factor = _large_enough(source)
    brush, radius = ImageDraw.Draw(picture), max(3, round(min(picture.size) / 90))
    for name, probability, x, y in points:
        if probability >= least:
            at = (x + 0.5) * factor, (y + 0.5) * factor
            dot = (at[0] - radius, at[1] - radius, at[0] + radius, at[1] + radius)
            brush.ellipse(dot, fill=colour_of(name), outline=(16, 16, 24))
    return picture


def _large_enough(source: Source) -> tuple[Image.Image, float]:
    picture = plain_picture(source)
    factor = max(1, -(-SMALLEST // min(picture.size)))
    if factor > 1 and max(picture.size) * factor <= 4096:
        size = (picture.width * factor, picture.height * factor)
        return picture.resize(size, Image.Resampling.NEAREST), factor
    return picture.copy(), 1
