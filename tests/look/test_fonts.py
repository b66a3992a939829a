import numpy as np
from PIL import Image

from qkv.look.fonts import pen

INK = (0, 0, 0)


def ink(text, **place):
    image = Image.new("RGB", (200, 60), (255, 255, 255))
    pen(20).write(image, (10, 30), text, INK, **place)
    return np.argwhere(np.array(image)[..., 0] < 128)


def test_width_is_that_of_the_ink():
    assert abs(np.ptp(ink("hello")[:, 1]) - pen(20).width("hello")) <= 4


def test_anchors_place_the_text_around_the_point():
    image = Image.new("RGB", (200, 60), (255, 255, 255))
    pen(20).write(image, (100, 30), "hello", INK, anchor="rm")
    columns = np.argwhere(np.array(image)[..., 0] < 128)[:, 1]
    assert 85 <= columns.max() <= 101


def test_upward_text_is_high_and_narrow_and_ends_above_its_foot():
    image = Image.new("RGB", (60, 200), (255, 255, 255))
    pen(20).write_upwards(image, (30, 190), "hello", INK)
    rows, columns = np.argwhere(np.array(image)[..., 0] < 128).T
    assert np.ptp(rows) > 2 * np.ptp(columns)
    assert rows.max() <= 190
    assert abs((columns.max() + columns.min()) / 2 - 30) < 6


def test_a_character_no_font_has_is_written_as_its_escape():
    unassigned = "\U0010fffd"  # the last code point for private use
    assert pen(20).width(unassigned) == pen(20).width("\\U0010fffd")


def test_signs_of_our_own_fall_back_to_ascii():
    assert pen(20).width("▁Wie") == pen(20).width("_Wie")
