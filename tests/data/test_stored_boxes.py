import numpy as np
import pytest
import torch
from PIL import Image

from qkv.data.batches import Batches
from qkv.data.box_rows import BoxRows
from qkv.data.boxes import Box, BoxedImage, BoxedImages
from qkv.data.plan import PlannedBatch, RowCount
from qkv.data.preprocessing import Exactly, Normalise, Preprocessing
from qkv.data.stored_boxes import StoredBoxes, StoredBoxRows, store_boxes
from qkv.errors import QkvError
from tests.data.test_composing import composer

NAMES = ("cat", "dog")
NORMALISE = Normalise(1 / 255)


def boxed() -> BoxedImages:
    pictures = [
        Image.fromarray(np.random.default_rng(seed).integers(0, 256, (20, 40, 3), np.uint8)) for seed in range(3)
    ]
    boxes = [(Box("dog", 1.0, 10, 5, 30, 15), Box("cat", 1.0, -10, 0, 10, 30)), (), (Box("cat", 1.0, 0, 0, 30, 20),)]
    return BoxedImages([BoxedImage(each, some) for each, some in zip(pictures, boxes, strict=True)], NAMES)


def test_stored_rows_are_those_that_are_read_each_time():
    stored = store_boxes(boxed(), (16, 32))
    planned = PlannedBatch(np.array([2, 0]), 1, 1)
    one = StoredBoxRows.of(stored, NORMALISE).batch(planned)
    other = BoxRows(boxed(), Preprocessing(resize=Exactly(16, 32), normalise=NORMALISE)).batch(planned)
    torch.testing.assert_close(one.pixels, other.pixels)
    assert one.real is None
    assert one.labels.tolist() == other.labels.tolist()
    torch.testing.assert_close(one.boxes, other.boxes)
    assert one.objects == other.objects == 3


@pytest.mark.parametrize("kind", ["stored", "read"])
def test_a_mirror_turns_pictures_and_boxes(kind):
    size = (20, 40)
    rows = StoredBoxRows.of(store_boxes(boxed(), size), NORMALISE)
    if kind == "read":
        rows = BoxRows(boxed(), Preprocessing(resize=Exactly(*size), normalise=NORMALISE))
    planned = PlannedBatch(np.arange(3), 1, 1)
    plain, turned = rows.batch(planned), rows.anew(mirrored=1.0)(0).batch(planned)
    torch.testing.assert_close(turned.pixels, plain.pixels.flip(-1))
    there = plain.labels >= 0
    torch.testing.assert_close(turned.boxes[..., 0][there], 1 - plain.boxes[..., 0][there])
    torch.testing.assert_close(turned.boxes[..., 1:][there], plain.boxes[..., 1:][there])
    half = [rows.anew(seed=1)(epoch).batch(planned).pixels for epoch in (0, 0, 1, 2, 3, 4, 5)]
    assert torch.equal(half[0], half[1])
    assert any(not torch.equal(half[0], each) for each in half[2:])


def test_scenes_are_composed_by_several_processes_as_by_one():
    scenes = composer(scenes=6)
    data = BoxedImages(scenes, scenes.names)
    alone, together = store_boxes(data, (48, 64)), store_boxes(data, (48, 64), workers=2)
    assert np.array_equal(alone.pixels, together.pixels)
    assert alone.boxes == together.boxes
    first, made = scenes[0].boxes[0], alone.boxes[0][0]
    np.testing.assert_allclose(made.corners, np.array(first.corners) / 2)


def test_some_of_them_and_all_as_pictures():
    stored = store_boxes(boxed(), (16, 32))
    some = stored.some([2, 0])
    assert np.array_equal(some.pixels[0], stored.pixels[2])
    assert some.boxes[1] == stored.boxes[0]
    again = store_boxes(stored.as_images(), (16, 32))
    assert np.array_equal(again.pixels, stored.pixels)
    assert again.boxes == list(stored.boxes)


def test_all_rows_come_once_an_epoch():
    rows = StoredBoxRows.of(store_boxes(boxed(), (16, 16)), NORMALISE)
    assert sum(batch.objects for batch in Batches(rows.anew(), RowCount(2), prefetch=0)) == 3


def test_what_makes_no_sense_is_refused():
    pixels = np.zeros((2, 4, 4, 3), np.uint8)
    for broken, told in [
        ((pixels.astype(np.float32), [(), ()], NAMES), "numbers of 8 bits"),
        ((pixels[..., :2], [(), ()], NAMES), "numbers of 8 bits"),
        ((pixels, [()], NAMES), "2 pictures, and the objects of 1"),
        ((pixels, [(), (Box("ant", 1.0, 0, 0, 1, 1),)], NAMES), "'ant', which is none of"),
    ]:
        with pytest.raises(QkvError, match=told):
            StoredBoxes(*broken)
    with pytest.raises(QkvError, match="one process at least"):
        store_boxes(boxed(), (4, 4), workers=0)
    with pytest.raises(QkvError, match="without filler"):
        StoredBoxRows.of(store_boxes(boxed(), (4, 4)), NORMALISE).batch(PlannedBatch(np.array([0]), 1, 1, filler=1))
