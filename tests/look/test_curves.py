import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qkv.errors import QkvError
from qkv.look.axes import Axis, Logarithmic
from qkv.look.curves import COLOURS, HEIGHT, WIDTH, Curve, Dot, Stroke, Words, curve_png, curve_svg, lay_out

RUNS = [Curve("Transformer", [1, 2, 3, 4], [10, 20, 26, 28]), Curve("RNN", [1, 2, 4, 8], [4, 9, 14, 20])]
X, Y = Axis("minutes"), Axis("BLEU")


def strokes(marks, number):
    return [mark for mark in marks if isinstance(mark, Stroke) and mark.colour == COLOURS[number] and mark.width == 2]


def test_higher_values_stand_higher_and_later_ones_further_right():
    (line,) = strokes(lay_out(RUNS, X, Y), 0)
    across, down = zip(*line.points, strict=True)
    assert list(across) == sorted(across)
    assert list(down) == sorted(down, reverse=True)
    steps = np.diff(across)
    assert steps == pytest.approx(steps[0])


def test_everything_stays_on_the_canvas():
    names = [f"a run with a rather long name {number}" for number in range(9)]
    marks = lay_out([Curve(name, [1, 2], [3, 4]) for name in names], X, Y, title="title")
    for mark in marks:
        for across, down in mark.points if isinstance(mark, Stroke) else [mark.at]:
            assert 0 <= across <= WIDTH
            assert 0 <= down <= HEIGHT
    assert {mark.text for mark in marks if isinstance(mark, Words)} >= {*names, "title", "minutes", "BLEU"}


def test_a_logarithmic_axis_makes_factors_equal():
    (line,) = strokes(lay_out(RUNS, Axis("FLOPs", Logarithmic()), Y), 1)
    steps = np.diff([point[0] for point in line.points])
    assert steps == pytest.approx(steps[0])


def test_a_value_that_is_not_finite_breaks_the_line():
    broken = Curve("broken", [1, 2, 3, 4, 5], [1, 2, math.nan, 2, 1])
    marks = lay_out([broken], X, Y)
    assert [len(line.points) for line in strokes(marks, 0)] == [2, 2]
    assert len([mark for mark in marks if isinstance(mark, Dot)]) == 2


def test_a_single_point_can_be_seen():
    marks = lay_out([Curve("one", [1], [1])], X, Y)
    assert [mark for mark in marks if isinstance(mark, Dot)]


def test_svg_is_well_formed_says_what_it_shows_and_escapes_names():
    svg = curve_svg([Curve("a<b> & c", [1, 2], [3, 4])], X, Y, title="BLEU of <two>")
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    assert root.find(f"{space}title").text == "BLEU of <two>"
    assert root.find(f"{space}desc").text == "BLEU against minutes for a<b> & c."
    assert "a<b> & c" in {text.text for text in root.iter(f"{space}text")}


def test_svg_and_png_show_the_same_points(tmp_path):
    path = curve_png(RUNS, tmp_path / "curves.png", X, Y, title="BLEU")
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.size == (2 * WIDTH, 2 * HEIGHT)
        for number in (0, 1):
            colour = tuple(int(COLOURS[number][place : place + 2], 16) for place in (1, 3, 5))
            root = ElementTree.fromstring(curve_svg(RUNS, X, Y, title="BLEU"))
            circle = list(root.iter("{http://www.w3.org/2000/svg}circle"))[number]
            at = (round(2 * float(circle.get("cx"))), round(2 * float(circle.get("cy"))))
            assert image.getpixel(at) == pytest.approx(colour, abs=6)


@pytest.mark.parametrize("curves", [[], [Curve("empty", [], [])], [Curve("lost", [1], [math.inf])]])
def test_nothing_to_plot_is_a_clear_error(curves):
    with pytest.raises(QkvError, match="nothing to plot"):
        lay_out(curves, X, Y)


def test_uneven_lengths_are_a_clear_error():
    with pytest.raises(QkvError, match="2 x values and 1 y values"):
        Curve("uneven", [1, 2], [1])


def test_an_unwritable_path_is_a_clear_error(tmp_path):
    with pytest.raises(QkvError, match="Cannot write"):
        curve_png(RUNS, Path(tmp_path), X, Y)
