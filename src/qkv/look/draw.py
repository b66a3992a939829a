"""Attention maps as images, by Pillow alone: one labelled heat map, or one for each head.

q queries (rows), k keys (columns).
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from qkv.errors import QkvError
from qkv.files import write_whole
from qkv.look.colour import PAPER, Rgb, ink_on, level
from qkv.look.fonts import Pen, pen
from qkv.look.labels import shortened, visible
from qkv.look.maps import AttentionMap, AttentionRecord
from qkv.look.table import WRITTEN_FROM, written

IMAGE_LIMIT = 96  # rows and columns that are drawn; an image says when there are more

_WHITE: Rgb = (255, 255, 255)
_INK: Rgb = (28, 27, 34)
_SOFT: Rgb = (110, 108, 120)
_MARGIN = 36
_LARGE, _SMALL = 48, 18  # the side of a cell in pixels, at most and at least
_TITLE = pen(26)
_SCALE_MARKS = (0, 0.1, 0.25, 0.5, 1)


@dataclass(frozen=True)
class Panel:
    """Where the parts of one heat map stand on its image, in pixels."""

    cell: int  # side of a cell
    left: int  # where the first column begins
    top: int  # where the first row begins
    upright: bool  # column labels too wide for a cell run upwards
    width: int
    height: int

    def box(self, row: int, column: int) -> tuple[int, int, int, int]:
        """The pixels of a cell: left, top, right, bottom; the last two are included."""
        x, y = self.left + column * self.cell, self.top + row * self.cell
        return x, y, x + self.cell - 2, y + self.cell - 2


def panel_for(queries: Sequence[str], keys: Sequence[str], title: str, room: int = 2000) -> Panel:
    """A layout with cells as large as `room` pixels allow and space for the longest label on each side."""
    cell = max(_SMALL, min(_LARGE, room // max(len(queries), len(keys))))
    label = _label_pen(cell)
    widest = max(label.width(shortened(key)) for key in keys)
    upright = widest > cell - 6
    left = _MARGIN + max(label.width(shortened(query)) for query in queries) + 12
    lines = title.splitlines()
    top = _MARGIN + _heading(title) + (widest + 12 if upright else label.size + 14)
    width = max([left + cell * len(keys), *(_MARGIN + _TITLE.width(line) for line in lines)]) + _MARGIN
    return Panel(cell, left, top, upright, width, top + cell * len(queries) + _MARGIN // 2)


def draw_map(attention: AttentionMap, head: int | None = None, title: str = "") -> Image.Image:
    """One heat map: of a head, or of the average of all heads."""
    if head is not None and not 0 <= head < attention.heads:
        raise QkvError(f"{attention.name} has no head {head}; it has heads 0 to {attention.heads - 1}.")
    cropped = attention.cropped(IMAGE_LIMIT)
    weights = cropped.average() if head is None else cropped.weights[head]
    return _with_foot(_heat_map(weights, cropped, title, room=2000), attention.crop_note(IMAGE_LIMIT))


def draw_heads(attention: AttentionMap, title: str = "") -> Image.Image:
    """Every head of a layer, in a grid that is about as wide as it is high."""
    cropped = attention.cropped(IMAGE_LIMIT)
    names = [f"head {head + 1}" for head in range(attention.heads)]
    tiles = [_heat_map(cropped.weights[head], cropped, name, room=700) for head, name in enumerate(names)]
    across = math.ceil(math.sqrt(len(tiles)))
    wide, high = max(tile.width for tile in tiles), max(tile.height for tile in tiles)
    heading = _heading(title)
    width = max([wide * across, *(_TITLE.width(line) + 2 * _MARGIN for line in title.splitlines())])
    grid = Image.new("RGB", (width, heading + high * math.ceil(len(tiles) / across)), _WHITE)
    for place, tile in enumerate(tiles):
        grid.paste(tile, (place % across * wide, heading + place // across * high))
    _write_title(grid, title)
    return _with_foot(grid, attention.crop_note(IMAGE_LIMIT))


def draw_record(record: AttentionRecord) -> Image.Image:
    """The average map of the most telling kind under its input and output."""
    texts = [_shortened(text) for text in (record.source, record.target) if text]
    return draw_map(record.average(), title="\n".join(texts))


def write_png(image: Image.Image, path: Path) -> Path:
    """Write an image as PNG, whole or not at all."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return write_whole(path, buffer.getvalue())


def _heat_map(weights: np.ndarray, labelled: AttentionMap, title: str, room: int) -> Image.Image:
    """Weights [q k] with the labels of their map."""
    panel = panel_for(labelled.queries, labelled.keys, title, room)
    image = Image.new("RGB", (panel.width, panel.height), _WHITE)
    brush = ImageDraw.Draw(image)
    label, figure = _label_pen(panel.cell), pen(17)
    _write_title(image, title)
    for column, key in enumerate(labelled.keys):
        middle = panel.left + column * panel.cell + panel.cell // 2
        if panel.upright:
            label.write_upwards(image, (middle, panel.top - 8), shortened(key), _INK)
        else:
            label.write(image, (middle, panel.top - 10), shortened(key), _INK, anchor="ms")
    steps = level(weights)  # [q k]
    for row, query in enumerate(labelled.queries):
        middle = panel.top + row * panel.cell + panel.cell // 2
        label.write(image, (panel.left - 10, middle), shortened(query), _INK, anchor="rm")
        for column in range(len(labelled.keys)):
            colour = PAPER[steps[row, column]]
            box = panel.box(row, column)
            brush.rectangle(box, fill=colour, outline=None)
            if panel.cell == _LARGE and weights[row, column] >= WRITTEN_FROM:
                centre = ((box[0] + box[2]) // 2, (box[1] + box[3]) // 2)
                figure.write(image, centre, written(float(weights[row, column])), ink_on(colour), anchor="mm")
    return image


def _with_foot(image: Image.Image, note: str) -> Image.Image:
    """The image with the colour scale under it, and what was left out."""
    small = pen(20)
    lines = textwrap.wrap(note, 90)
    bar = 280
    width = max(image.width, 2 * _MARGIN + max([bar + 40, *(small.width(line) for line in lines)]))
    height = 84 + 28 * len(lines)
    whole = Image.new("RGB", (width, image.height + height), _WHITE)
    whole.paste(image, (0, 0))
    brush, top = ImageDraw.Draw(whole), image.height + 18
    for x in range(bar):
        weight = (x / (bar - 1)) ** 2  # the scale is that of square roots
        colour = PAPER[int(level(np.array(weight)))]
        brush.line((_MARGIN + x, top, _MARGIN + x, top + 15), fill=colour)
    brush.rectangle((_MARGIN, top, _MARGIN + bar - 1, top + 15), outline=_SOFT)
    for mark in _SCALE_MARKS:
        x = _MARGIN + round(math.sqrt(mark) * (bar - 1))
        small.write(whole, (x, top + 38), written(mark), _SOFT, anchor="ms")
    for number, line in enumerate(lines):
        small.write(whole, (_MARGIN, top + 62 + 28 * number), line, _SOFT)
    return whole


def _heading(title: str) -> int:
    """The height of a title of any number of lines, with the space under it."""
    lines = len(title.splitlines())
    return 36 * lines + 16 if lines else 0


def _write_title(image: Image.Image, title: str) -> None:
    for number, line in enumerate(title.splitlines()):
        _TITLE.write(image, (_MARGIN, _MARGIN + 12 + 36 * number), line, _SOFT if number else _INK)


def _label_pen(cell: int) -> Pen:
    return pen(min(22, round(cell * 0.7)))


def _shortened(text: str, width: int = 60) -> str:
    shown = visible(text).replace("␣", " ")
    return shown if len(shown) <= width else shown[: width - 1] + "…"
