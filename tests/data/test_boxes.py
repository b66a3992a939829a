import json

import pytest
from PIL import Image

from qkv.data.boxes import Box, coco_annotations, read_box_table, read_coco
from qkv.errors import QkvError


@pytest.fixture
def folder(tmp_path):
    for name in ("a.png", "b.png"):
        Image.new("RGB", (40, 30), "white").save(tmp_path / name)
    return tmp_path


def table(folder, *rows):
    (folder / "boxes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder / "boxes.jsonl"


def test_a_table_of_boxes_is_read(folder):
    path = table(
        folder,
        {"image": "a.png", "boxes": [{"label": "dog", "box": [1, 2, 11, 12.5]}, {"label": "cat", "box": [0, 0, 5, 5]}]},
        {"image": "b.png", "boxes": []},
    )
    data = read_box_table(path)
    assert data.names == ("cat", "dog")
    assert data.items[0].boxes == (Box("dog", 1.0, 1, 2, 11, 12.5), Box("cat", 1.0, 0, 0, 5, 5))
    assert data.items[0].image == folder / "a.png"
    assert data.items[1].boxes == ()
    assert read_box_table(path, classes=("dog", "cat", "cow")).names == ("dog", "cat", "cow")


@pytest.mark.parametrize(
    ("boxes", "reason"),
    [
        ("none", "no list of objects"),
        ([{"label": "cat"}], 'not {"label": …, "box"'),
        ([{"label": "cat", "box": [1, 2, 3]}], "four numbers"),
        ([{"label": "cat", "box": [1, 2, 3, "4"]}], "four numbers"),
        ([{"label": "cat", "box": [5, 2, 5, 4]}], "without an inside"),
        ([{"label": "cat", "box": [5, 9, 6, 4]}], "without an inside"),
        ([{"box": [1, 2, 3, 4]}], "is missing"),
    ],
)
def test_bad_rows_are_told_and_left_out(folder, boxes, reason):
    good = {"image": "a.png", "boxes": [{"label": "cat", "box": [0, 0, 5, 5]}]}
    data = read_box_table(table(folder, {"image": "b.png", "boxes": boxes}, good))
    assert len(data) == 1
    assert reason in data.problems[0].reason


def test_classes_and_files_that_are_not_there_are_told(folder):
    good = {"image": "a.png", "boxes": [{"label": "cat", "box": [0, 0, 5, 5]}]}
    rows = [good, {**good, "image": "c.png"}, {"image": "a.png", "boxes": [{"label": "cow", "box": [0, 0, 5, 5]}]}]
    data = read_box_table(table(folder, *rows), classes=("cat",))
    assert [problem.line for problem in data.problems] == [2, 3]
    with pytest.raises(QkvError, match="nothing to learn from"):
        read_box_table(table(folder, {"image": "a.png", "boxes": []}))


def test_a_coco_file_is_written_and_read(folder):
    boxes = [[Box("dog", 1.0, 1, 2, 11, 12.5)], [Box("cat", 1.0, 0, 0, 5, 5), Box("dog", 1.0, 3, 3, 4, 9)]]
    images = [{"id": 7, "file_name": "a.png"}, {"id": 9, "file_name": "b.png"}]
    content = coco_annotations(images, boxes, ("cat", "dog"))
    content["annotations"].append({"image_id": 7, "category_id": 1, "bbox": [0, 0, 1, 1], "iscrowd": 1})
    (folder / "coco.json").write_text(json.dumps(content), encoding="utf-8")
    data = read_coco(folder / "coco.json")
    assert data.names == ("cat", "dog")
    assert [list(item.boxes) for item in data.items] == boxes
    assert [len(item.boxes) for item in read_coco(folder / "coco.json", classes=("cat",)).items] == [0, 1]
    content["annotations"].append({"image_id": 7, "category_id": 1, "bbox": [0, 0, 0, 1]})
    (folder / "coco.json").write_text(json.dumps(content), encoding="utf-8")
    assert "without an inside" in read_coco(folder / "coco.json").problems[0].reason


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"images": [], "categories": []},
        {"images": [{"id": 1}], "annotations": [], "categories": []},
        {"images": [], "annotations": [], "categories": []},
        {"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{"image_id": 1}], "categories": []},
        {"images": [{"id": 1, "file_name": "none.png"}], "annotations": [], "categories": [{"id": 1, "name": "cat"}]},
    ],
)
def test_what_is_no_coco_file_is_refused(folder, content):
    (folder / "coco.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(QkvError, match=r"no COCO file|names no picture|no such file"):
        read_coco(folder / "coco.json")
