import numpy as np
from PIL import Image

from qkv.data.boxes import Box
from qkv.look.boxes import colour_of, draw_boxes, draw_points


def test_a_frame_stands_where_its_box_is():
    picture = Image.new("RGB", (400, 330), (90, 90, 90))
    drawn = np.asarray(draw_boxes(picture, [Box("cat", 0.9, 100, 150, 300, 250)]))
    assert drawn.shape == (330, 400, 3)
    assert tuple(drawn[200, 100]) == colour_of("cat")
    assert tuple(drawn[250, 200]) == colour_of("cat")
    assert tuple(drawn[200, 200]) == (90, 90, 90)  # nothing inside
    assert tuple(drawn[20, 20]) == (90, 90, 90)  # nor elsewhere
    assert (np.asarray(picture) == 90).all()  # the picture itself is left as it was


def test_small_pictures_are_drawn_large_enough_to_read_and_boxes_grow_along():
    drawn = np.asarray(draw_boxes(Image.new("RGB", (32, 40), "black"), [Box("dog", 1.0, 8, 20, 24, 36)]))
    assert drawn.shape == (400, 320, 3)
    assert tuple(drawn[300, 80]) == colour_of("dog")


def test_boxes_that_leave_the_picture_are_cut_off():
    drawn = draw_boxes(
        Image.new("RGB", (400, 400)), [Box("cat", 0.5, -50, -50, 900, 900), Box("cow", 0.1, 390, 0, 399, 1)]
    )
    assert drawn.size == (400, 400)
    assert drawn.getpixel((0, 200)) == colour_of("cat")


def test_points_are_dots_where_they_are():
    points = [("nose", 0.9, 100.0, 50.0), ("ear", 0.1, 300.0, 50.0)]
    drawn = draw_points(Image.new("RGB", (400, 330), (90, 90, 90)), points, least=0.5)
    assert drawn.getpixel((100, 50)) == colour_of("nose")
    assert drawn.getpixel((300, 50)) == (90, 90, 90)
