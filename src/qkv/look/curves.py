"""Training curves of several runs in one plot, as PNG and as inline SVG.

The plot is laid out once, as a list of strokes and words on a canvas of WIDTH × HEIGHT; the two painters know nothing
else, so that both pictures show the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from PIL import Image, ImageDraw

from qkv.errors import QkvError
from qkv.look.axes import Axis, figure
from qkv.look.draw import write_png
from qkv.look.fonts import pen
from qkv.look.labels import escaped, visible

WIDTH, HEIGHT = 760, 440
_LEFT, _RIGHT, _BOTTOM = 72, 24, 56
_ROW = 22  # height of a row of the legend

# Told apart by hue and by lightness, and legible on white as on black.
COLOURS = (
    "#3a7dc9", "#d9622b", "#1a9a78", "#a855a8", "#c48a12", "#6a6ae0", "#d0466a", "#6f7b87", "#5d9e2f", "#8a5a3b",
    "#16a3b8", "#b3399e",
)  # fmt: skip
_INK, _SOFT, _FAINT = "ink", "soft", "faint"  # the painters' greys: text, secondary text, grid


@dataclass(frozen=True)
class Curve:
    """One run: y against x. A value that is not finite interrupts the line."""

    name: str
    x: Sequence[float]
    y: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise QkvError(f"The curve {self.name!r} has {len(self.x)} x values and {len(self.y)} y values.")


Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Stroke:
    points: tuple[Point, ...]
    colour: str
    width: float


@dataclass(frozen=True)
class Dot:
    at: Point
    colour: str
    radius: float


@dataclass(frozen=True)
class Words:
    at: Point  # on the middle line of the text
    text: str
    colour: str
    size: int
    anchor: str  # start, middle or end
    upright: bool = False


Mark: TypeAlias = Stroke | Dot | Words


def lay_out(curves: Sequence[Curve], x: Axis, y: Axis, title: str = "") -> list[Mark]:
    """Everything on the plot, in the order in which it is drawn."""
    runs = [_runs(curve) for curve in curves]
    shown = [point for curve in runs for run in curve for point in run]
    if not shown:
        raise QkvError("There is nothing to plot: none of the curves has a point with finite values.")
    x_low, x_high = x.scale.ends([point[0] for point in shown])
    y_low, y_high = y.scale.ends([point[1] for point in shown])
    legend, legend_rows = _legend(curves, top=_ROW + 22 if title else 20)
    top = (44 if title else 16) + _ROW * legend_rows
    inner_width, inner_height = WIDTH - _LEFT - _RIGHT, HEIGHT - top - _BOTTOM

    def across(value: float) -> float:
        return _LEFT + inner_width * x.scale.place(value, x_low, x_high)

    def down(value: float) -> float:  # a little air above and below the curves
        return top + inner_height * (0.96 - 0.92 * y.scale.place(value, y_low, y_high))

    marks: list[Mark] = [Words((_LEFT, 24), title, _INK, 16, "start")] if title else []
    marks += legend
    for value in y.scale.marks(y_low, y_high):
        marks.append(Stroke(((_LEFT, down(value)), (WIDTH - _RIGHT, down(value))), _FAINT, 1))
        marks.append(Words((_LEFT - 8, down(value)), figure(value), _SOFT, 12, "end"))
    floor = top + inner_height
    for value in x.scale.marks(x_low, x_high):
        marks.append(Stroke(((across(value), floor), (across(value), floor + 5)), _SOFT, 1))
        marks.append(Words((across(value), floor + 16), figure(value), _SOFT, 12, "middle"))
    marks.append(Stroke(((_LEFT, floor), (WIDTH - _RIGHT, floor)), _SOFT, 1))
    marks.append(Words((_LEFT + inner_width / 2, HEIGHT - 16), x.label, _INK, 13, "middle"))
    marks.append(Words((18, top + inner_height / 2), y.label, _INK, 13, "middle", upright=True))
    for number, curve in enumerate(runs):
        for run in curve:
            points = tuple((across(value[0]), down(value[1])) for value in run)
            marks.append(Stroke(points, _colour(number), 2))
            marks.append(Dot(points[-1], _colour(number), 3.5))
    return marks


def curve_svg(curves: Sequence[Curve], x: Axis, y: Axis, title: str = "") -> str:
    """The plot as an <svg> element to put into a page; text and axes take the colour of the text around it."""
    paint = {_INK: 'COLOUR="currentColor"', _SOFT: 'COLOUR="currentColor" opacity=".7"'}
    paint[_FAINT] = 'COLOUR="currentColor" opacity=".15"'

    def coloured(what: str, colour: str) -> str:
        return paint.get(colour, f'COLOUR="{colour}"').replace("COLOUR", what)

    names = ", ".join(curve.name for curve in curves)
    described = f"{y.label} against {x.label} for {names}."
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="system-ui, sans-serif" style="max-width:100%;height:auto">',
        f"<title>{escaped(title or described)}</title><desc>{escaped(described)}</desc>",
    ]
    for mark in lay_out(curves, x, y, title):
        match mark:
            case Stroke(points, colour, width):
                path = " ".join(f"{across:.1f},{down:.1f}" for across, down in points)
                parts.append(
                    f'<polyline points="{path}" fill="none" {coloured("stroke", colour)} stroke-width="{width}" '
                    'stroke-linejoin="round" stroke-linecap="round"/>'
                )
            case Dot((across, down), colour, radius):
                parts.append(f'<circle cx="{across:.1f}" cy="{down:.1f}" r="{radius}" {coloured("fill", colour)}/>')
            case Words((across, down), text, colour, size, anchor, upright):
                turn = f' transform="rotate(-90 {across:.1f} {down:.1f})"' if upright else ""
                parts.append(
                    f'<text x="{across:.1f}" y="{down:.1f}" dy=".35em" font-size="{size}" text-anchor="{anchor}" '
                    f"{coloured('fill', colour)}{turn}>{escaped(text)}</text>"
                )
    return "\n".join([*parts, "</svg>"])


def curve_image(curves: Sequence[Curve], x: Axis, y: Axis, title: str = "") -> Image.Image:
    """The plot as an image of twice WIDTH × HEIGHT pixels."""
    greys = {_INK: "#1c1b22", _SOFT: "#6e6c78", _FAINT: "#e4e3e9"}
    marks = lay_out(curves, x, y, title)
    fine, dense = 4, 2  # strokes are drawn twice too large and scaled down, which smooths them
    canvas = Image.new("RGB", (WIDTH * fine, HEIGHT * fine), "#ffffff")
    brush = ImageDraw.Draw(canvas)
    for mark in marks:
        match mark:
            case Stroke(points, colour, width):
                scaled = [(across * fine, down * fine) for across, down in points]
                brush.line(scaled, fill=greys.get(colour, colour), width=round(width * fine), joint="curve")
            case Dot((across, down), colour, radius):
                box = (across - radius, down - radius, across + radius, down + radius)
                brush.ellipse([each * fine for each in box], fill=greys.get(colour, colour))
    image = canvas.resize((WIDTH * dense, HEIGHT * dense), Image.Resampling.LANCZOS)
    for mark in marks:
        if isinstance(mark, Words):
            _write(image, mark, greys[mark.colour], dense)
    return image


def curve_png(curves: Sequence[Curve], path: Path, x: Axis, y: Axis, title: str = "") -> Path:
    """The plot as a PNG file."""
    return write_png(curve_image(curves, x, y, title), path)


def _write(image: Image.Image, words: Words, colour: str, dense: int) -> None:
    ink = (int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16))
    hand, text = pen(words.size * dense), visible(words.text).replace("␣", " ")
    across, down = round(words.at[0] * dense), round(words.at[1] * dense)
    if words.upright:
        hand.write_upwards(image, (across, down + hand.width(text) // 2), text, ink)
    else:
        hand.write(image, (across, down), text, ink, anchor={"start": "lm", "middle": "mm", "end": "rm"}[words.anchor])


def _legend(curves: Sequence[Curve], top: float) -> tuple[list[Mark], int]:
    """The names of the curves in rows, and how many rows they take."""
    marks: list[Mark] = []
    across, row = float(_LEFT), 0
    for number, curve in enumerate(curves):
        width = 26 + 1.15 * pen(13).width(curve.name) + 24  # a page may have a wider font
        if across + width > WIDTH and across > _LEFT:
            across, row = float(_LEFT), row + 1
        middle = top + 6 + _ROW * row
        marks.append(Stroke(((across, middle), (across + 18, middle)), _colour(number), 3))
        marks.append(Words((across + 26, middle), curve.name, _INK, 13, "start"))
        across += width
    return marks, row + 1


def _runs(curve: Curve) -> list[list[Point]]:
    """The unbroken stretches of a curve."""
    runs: list[list[Point]] = [[]]
    for across, up in zip(curve.x, curve.y, strict=True):
        if math.isfinite(across) and math.isfinite(up):
            runs[-1].append((float(across), float(up)))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
