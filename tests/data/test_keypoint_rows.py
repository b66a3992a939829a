import json

import numpy as np
import pytest
import torch
from PIL import Image

from qkv.data.keypoint_rows import KeypointRows, PointedImage, PointedImages, read_keypoint_table
from qkv.data.plan import PlannedBatch
from qkv.data.preprocessing import Normalise
from qkv.errors import QkvError


@pytest.fixture
def folder(tmp_path):
    Image.new("RGB", (40, 30), "white").save(tmp_path / "a.png")
    return tmp_path


def table(folder, *rows):
    (folder / "points.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder / "points.jsonl"


GOOD = {"image": "a.png", "points": {"nose": [3, 4.5], "ear": [1, 2]}, "box": [0, 0, 20, 10]}


def test_a_table_of_keypoints_is_read(folder):
    data = read_keypoint_table(table(folder, GOOD, {**GOOD, "box": None}))
    assert data.names == ("ear", "nose")
    assert data.items[0].points == {"nose": (3.0, 4.5), "ear": (1.0, 2.0)}
    assert [item.box for item in data.items] == [(0, 0, 20, 10), None]
    assert read_keypoint_table(table(folder, GOOD), names=("nose", "ear", "eye")).names == ("nose", "ear", "eye")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"points": {}}, "no keypoints by name"),
        ({"points": {"nose": [1]}}, "two numbers"),
        ({"points": {"nose": [1, "2"]}}, "two numbers"),
        ({"points": {"tail": [1, 2]}}, "none of nose, ear"),
        ({"box": [0, 0, 0, 5]}, "without an inside"),
        ({"box": "all"}, "holds no box"),
        ({"image": "b.png"}, "no such file"),
    ],
)
def test_bad_rows_are_told_and_left_out(folder, changed, reason):
    data = read_keypoint_table(table(folder, GOOD, {**GOOD, **changed}), names=("nose", "ear"))
    assert len(data) == 1
    assert reason in data.problems[0].reason


def test_a_batch_holds_what_frames_show_and_places_in_them():
    picture = Image.new("RGB", (50, 30), "white")
    items = [
        PointedImage(picture, (10.0, 5.0, 30.0, 25.0), {"nose": (20.0, 15.0), "ear": (49.0, 29.0)}),
        PointedImage(picture, None, {"ear": (25.0, 15.0)}),
    ]
    rows = KeypointRows(PointedImages(items, ("ear", "nose")), (16, 16), Normalise())
    batch = rows.batch(PlannedBatch(np.array([0, 1]), 1, 1))
    assert batch.pixels.shape == (2, 3, 16, 16)
    assert batch.seen.tolist() == [[False, True], [True, False]]  # the first ear is out of its frame
    assert batch.count == 2
    torch.testing.assert_close(batch.points[0, 1], torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(batch.points[1, 0], torch.tensor([0.5, 0.5]))
    with pytest.raises(QkvError, match="without filler"):
        rows.batch(PlannedBatch(np.array([0]), 1, 1, filler=1))
