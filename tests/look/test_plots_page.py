"""A page of plots: everything on it is text, nothing is loaded, and each plot is a picture beside it."""

from pathlib import Path

from PIL import Image

from qkv.look.axes import Axis
from qkv.look.curves import Curve
from qkv.look.plots_page import Plot, Remarks, Table, plots_page, write_plots_page

POINTS = Curve("<b>dots</b>", [1.0, float("nan"), 2.0], [3.0, float("nan"), 4.0])
PLOT = Plot("one.png", "One & only", [POINTS], Axis("x"), Axis("y"), "a <note>")
TABLE = Table(["variant", "bits"], [["<script>", "1.5"]])
REMARKS = [Remarks("dense", [("Behind:", ["by <0.1>"])])]


def test_whatever_stands_on_it_is_escaped() -> None:
    page = plots_page("A <title>", ["about <this>"], TABLE, REMARKS, [PLOT])
    for raw in ("<script>", "<b>dots", "<note>", "<0.1>", "A <title>", "about <this>"):
        assert raw not in page
    assert "One &amp; only" in page
    assert page.count("<svg") == 1
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")


def test_pictures_stand_beside_the_page(tmp_path: Path) -> None:
    written = write_plots_page(tmp_path, "title", [], TABLE, [], [PLOT])
    assert [path.name for path in written] == ["page.html", "one.png"]
    with Image.open(tmp_path / "one.png") as image:
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}
    assert (58, 125, 201) in colours  # the first colour of curves: two single points are drawn as dots
