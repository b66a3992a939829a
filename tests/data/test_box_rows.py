import numpy as np
import pytest
import torch
from PIL import Image

from qkv.data.batches import Batches
from qkv.data.box_rows import BoxRows
from qkv.data.boxes import Box, BoxedImage, BoxedImages
from qkv.data.plan import PlannedBatch, RowCount
from qkv.data.preprocessing import Centre, EdgesUpTo, Exactly, Preprocessing
from qkv.errors import QkvError

NAMES = ("cat", "dog")


def rows(preprocessing: Preprocessing) -> BoxRows:
    pictures = [Image.new("RGB", size, "white") for size in ((40, 20), (20, 60), (30, 30))]
    boxes = [
        (Box("dog", 1.0, 10, 5, 30, 15), Box("cat", 1.0, -10, 0, 10, 30)),
        (),
        (Box("cat", 1.0, 0, 0, 30, 30),),
    ]
    items = [BoxedImage(picture, some) for picture, some in zip(pictures, boxes, strict=True)]
    return BoxRows(BoxedImages(items, NAMES), preprocessing)


def test_a_batch_holds_pictures_and_boxes_as_shares():
    batch = rows(Preprocessing(resize=Exactly(16, 24))).batch(PlannedBatch(np.array([2, 0]), 1, 1))
    assert batch.pixels.shape == (2, 3, 16, 24)
    assert batch.real is None
    assert batch.labels.tolist() == [[0, -1], [1, 0]]
    assert batch.objects == 3
    expected = torch.tensor([[[0.5, 0.5, 1.0, 1.0], [0, 0, 0, 0]], [[0.5, 0.5, 0.5, 0.5], [0.125, 0.5, 0.25, 1.0]]])
    torch.testing.assert_close(batch.boxes, expected)  # what leaves the picture is cut off


def test_pictures_of_several_sizes_are_padded_and_boxes_stay_shares_of_their_own():
    prepared = Preprocessing(resize=EdgesUpTo(16, 100), padding="to largest")
    batch = rows(prepared).batch(PlannedBatch(np.array([0, 1]), 1, 1))
    assert batch.pixels.shape == (2, 3, 48, 32)
    assert batch.real.sum((1, 2)).tolist() == [16 * 32, 48 * 16]
    assert batch.labels.tolist() == [[1, 0], [-1, -1]]
    torch.testing.assert_close(batch.boxes[0, 0], torch.tensor([0.5, 0.5, 0.5, 0.5]))


def test_all_rows_come_once_an_epoch():
    batches = Batches(rows(Preprocessing(resize=Exactly(16, 16))), RowCount(2), prefetch=0)
    assert sorted(batch.objects for batch in batches)[-1] <= 3
    assert sum(batch.objects for batch in batches) == 3


def test_what_would_move_the_boxes_is_refused():
    with pytest.raises(QkvError, match="would move the boxes"):
        rows(Preprocessing(resize=Exactly(16, 16), crop=Centre(8, 8)))
    with pytest.raises(QkvError, match="without filler"):
        rows(Preprocessing(resize=Exactly(16, 16))).batch(PlannedBatch(np.array([0]), 1, 1, filler=1))
