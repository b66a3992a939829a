import numpy as np
import pytest
from transformers.models.vitpose.image_processing_pil_vitpose import (
    box_to_center_and_scale,
    get_warp_matrix,
    scipy_warp_affine,
)

from qkv.data.framing import Frame, frame_around, framed
from qkv.errors import QkvError

SIZE = (64, 48)
BOXES = [(10.0, 20.0, 60.0, 50.0), (-15.0, -5.0, 30.0, 90.0), (40.5, 30.25, 44.0, 70.0), (0.0, 0.0, 100.0, 80.0)]


@pytest.mark.parametrize("box", BOXES)
def test_frames_and_what_they_show_are_those_of_the_reference(box):
    picture = np.random.default_rng(0).integers(0, 256, (80, 100, 3), np.uint8)
    x0, y0, x1, y1 = box
    centre, scale = box_to_center_and_scale((x0, y0, x1 - x0, y1 - y0), SIZE[1], SIZE[0])
    frame = frame_around(box, SIZE)
    np.testing.assert_allclose((frame.width, frame.height), scale * 200, rtol=1e-5)
    np.testing.assert_allclose((frame.left, frame.top), centre - scale * 100, rtol=1e-5, atol=1e-4)
    matrix = get_warp_matrix(0, centre * 2.0, np.array((SIZE[1], SIZE[0])) - 1.0, scale * 200.0)
    expected = scipy_warp_affine(picture, matrix, SIZE).astype(int)
    found = framed(picture, frame, SIZE).astype(int)
    off = np.abs(found - expected)
    assert (off <= 1).mean() > 0.995  # an edge of the picture may fall on either side of a rounding
    assert off.mean() < 0.1


def test_a_frame_of_the_whole_picture_shows_it_as_it_is():
    picture = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
    assert np.array_equal(framed(picture, Frame(0, 0, 6, 8), (9, 7)), picture)
    assert np.array_equal(framed(picture, Frame(0, 0, 6, 8), (1, 1)), picture[:1, :1])


def test_places_come_back_as_points():
    frame = frame_around((10.0, 20.0, 60.0, 50.0), SIZE)
    assert frame.point(*frame.share(33.5, 21.25)) == pytest.approx((33.5, 21.25))
    assert frame.share(35.0, 35.0) == pytest.approx((0.5, 0.5))


def test_a_box_without_an_inside_has_no_frame():
    with pytest.raises(QkvError, match="without an inside"):
        frame_around((5.0, 5.0, 5.0, 9.0), SIZE)
