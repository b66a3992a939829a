import io

import numpy as np
import pytest
from PIL import Image

from qkv.errors import QkvError
from qkv.look.colour import PAPER, level
from qkv.look.draw import IMAGE_LIMIT, draw_heads, draw_map, draw_record, panel_for, write_png
from qkv.look.maps import AttentionMap, Kind
from tests.look.fabricated import distributions, fabricate


def cell_colour(image, panel, row, column):
    """The pixel in the corner of a cell, where no number is written."""
    left, top, _, _ = panel.box(row, column)
    return image.getpixel((left + 1, top + 1))


@pytest.mark.parametrize("head", [None, 0, 2])
def test_every_cell_has_the_colour_of_its_weight_and_the_largest_is_darkest(head):
    attention = fabricate().of(Kind.CROSS)[0]
    image = draw_map(attention, head=head)
    weights = attention.average() if head is None else attention.weights[head]
    panel = panel_for(attention.queries, attention.keys, title="")
    drawn = np.array([[cell_colour(image, panel, q, k) for k in range(7)] for q in range(4)])
    np.testing.assert_array_equal(drawn, np.array(PAPER)[level(weights)])
    assert drawn.sum(axis=-1).argmin() == weights.argmax()


def test_the_file_is_a_png_of_the_size_of_its_layout(tmp_path):
    attention = fabricate().of(Kind.CROSS)[0]
    image = draw_map(attention)
    path = write_png(image, tmp_path / "map.png")
    panel = panel_for(attention.queries, attention.keys, title="")
    with Image.open(io.BytesIO(path.read_bytes())) as read:
        assert read.format == "PNG"
        assert read.size == image.size
        assert read.size[0] >= panel.left + panel.cell * 7
        assert read.size[1] > panel.top + panel.cell * 4
        np.testing.assert_array_equal(np.array(read), np.array(image))


def test_long_column_labels_run_upwards_and_fit():
    keys = ("Geschwisterchen", "b")
    panel = panel_for(("a",), keys, title="")
    assert panel.upright
    assert not panel_for(("a",), ("p", "h"), title="").upright
    image = draw_map(AttentionMap("m", Kind.CROSS, np.full((1, 1, 2), 0.5, np.float32), ("a",), keys))
    above = np.array(image)[: panel.top, panel.left : panel.left + panel.cell]
    assert (above < 128).any()  # there is ink over the column ...
    assert (np.array(image)[:8] == 255).all()  # ... and none of it is cut off at the edge


def test_a_grid_shows_every_head():
    attention = fabricate(heads=4).of(Kind.CROSS)[0]
    one, grid = draw_map(attention), draw_heads(attention, title="layer 1")
    assert grid.width > 1.5 * one.width / 2
    tile = panel_for(attention.queries, attention.keys, "head 1", room=700)
    top = grid.height - 2 * tile.height - (one.height - panel_for(attention.queries, attention.keys, "").height)
    for head in range(4):
        corner = (head % 2 * tile.width, top + head // 2 * tile.height)
        left, upper, _, _ = tile.box(0, 0)
        colour = grid.getpixel((corner[0] + left + 1, corner[1] + upper + 1))
        assert colour == PAPER[level(attention.weights[head])[0, 0]]


def test_a_record_is_drawn_under_its_texts():
    record = fabricate()
    assert draw_record(record).height > draw_map(record.average()).height


def test_a_long_input_is_cut_and_the_image_says_so():
    size = IMAGE_LIMIT + 40
    labels = ("a",) * size
    attention = AttentionMap("m", Kind.ENCODER, distributions(1, size, size, seed=0), labels, labels)
    image = draw_map(attention)
    assert max(image.size) < 2600
    whole = draw_map(attention.cropped(IMAGE_LIMIT))
    assert image.height > whole.height  # the note takes room that a map shown whole does not need
    assert image.width == whole.width
    assert f"first {IMAGE_LIMIT} of {size} rows" in attention.crop_note(IMAGE_LIMIT)


def test_any_script_is_drawn_without_an_error():
    labels = ("ə", "漢字", "שלום", "\x00", "", "\ud800", "é")
    weights = distributions(1, len(labels), len(labels), seed=1)
    assert draw_map(AttentionMap("m", Kind.ENCODER, weights, labels, labels)).width > 100


def test_a_head_that_is_not_there_is_a_clear_error():
    with pytest.raises(QkvError, match="no head 3; it has heads 0 to 2"):
        draw_map(fabricate(heads=3).maps[0], head=3)


def test_an_unwritable_path_is_a_clear_error(tmp_path):
    with pytest.raises(QkvError, match="Cannot write"):
        write_png(draw_map(fabricate().maps[0]), tmp_path)
