import math

import pytest

from qkv.errors import QkvError
from qkv.look.axes import Axis, Logarithmic
from qkv.look.curves import Curve
from qkv.look.text_plot import text_plot

X, Y = Axis("updates"), Axis("loss")


def canvas(text, mark):
    """(column, row from the bottom) of a mark."""
    rows = [line.split("|", 1)[1] for line in text.splitlines() if "|" in line]
    return [(column, len(rows) - 1 - row) for row, line in enumerate(rows) for column, each in enumerate(line)
            if each == mark]  # fmt: skip


@pytest.mark.parametrize("width", [40, 80, 137])
def test_a_curve_goes_from_corner_to_corner_and_stays_within_the_window(width):
    text = text_plot([Curve("falling", [0, 10], [5, 1])], X, Y, width=width, height=12)
    cells = canvas(text, "*")
    assert min(cells) == (0, 11)
    assert max(cells)[1] == 0
    assert max(map(len, text.splitlines())) == width
    assert {column for column, _ in cells} == set(range(max(cells)[0] + 1)), "points are joined"
    assert text.isascii()


def test_a_straight_line_on_a_logarithmic_axis_is_a_geometric_series():
    curve = Curve("halving", [0, 1, 2, 3], [8, 4, 2, 1])
    cells = dict(canvas(text_plot([curve], X, Axis("loss", Logarithmic()), width=40, height=10), "*"))
    columns = sorted(cells)
    assert cells[columns[0]] == 9
    assert cells[columns[-1]] == 0
    assert abs(cells[columns[len(columns) // 2]] - 4.5) <= 1


def test_curves_are_told_apart_and_named():
    text = text_plot([Curve("one", [1, 2], [1, 2]), Curve("two", [1, 2], [2, 1])], X, Y, title="both")
    assert text.splitlines()[:4] == ["both", "* one", "o two", "loss"]
    assert canvas(text, "*")
    assert canvas(text, "o")
    assert "updates" in text.splitlines()[-1]


def test_values_that_are_not_finite_are_left_out():
    text = text_plot([Curve("broken", [1, 2, 3], [1, math.nan, 3])], X, Y)
    assert canvas(text, "*")
    with pytest.raises(QkvError, match="nothing to plot"):
        text_plot([Curve("lost", [1], [math.inf])], X, Y)
