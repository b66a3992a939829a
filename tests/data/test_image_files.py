"""Labelled pictures as people keep them."""

import csv
import io
import json
from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

from qkv.data.image_files import read_image_folder, read_image_table
from qkv.errors import QkvError

COLOURS = {"red": (255, 0, 0), "blue": (0, 0, 255)}


def png(colour: str) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (4, 4), COLOURS[colour]).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for colour in COLOURS:
        (tmp_path / colour / "deep").mkdir(parents=True)
        (tmp_path / colour / "b.PNG").write_bytes(png(colour))
        (tmp_path / colour / "deep" / "a.png").write_bytes(png(colour))
        (tmp_path / colour / "notes.txt").write_text("not a picture")
        (tmp_path / colour / ".hidden.png").write_text("left by another program")
    (tmp_path / ".cache").mkdir()
    return tmp_path


def test_a_folder_is_a_class(folder: Path) -> None:
    found = read_image_folder(folder)
    assert found.names == ("blue", "red")
    assert found.labels == ["blue", "blue", "red", "red"]
    assert found.numbers().tolist() == [0, 0, 1, 1]
    assert [Path(each).name for each in found.images] == ["b.PNG", "a.png"] * 2


def test_the_classes_of_a_model_keep_their_order(folder: Path) -> None:
    assert read_image_folder(folder, ["red", "green", "blue"]).numbers().tolist() == [2, 2, 0, 0]
    with pytest.raises(QkvError, match="blue is named as none of the classes red, green"):
        read_image_folder(folder, ["red", "green"])


def test_folders_without_pictures_are_told(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(QkvError, match="There is no folder"):
        read_image_folder(folder / "absent")
    with pytest.raises(QkvError, match="should hold a folder for each class"):
        read_image_folder(folder / "red" / "deep")
    (folder / "green").mkdir()
    with pytest.raises(QkvError, match="green holds no image"):
        read_image_folder(folder)


@pytest.mark.parametrize("format", ["csv", "jsonl", "tsv"])
def test_a_table_names_files_beside_it(folder: Path, format: str) -> None:
    rows = [("red/b.PNG", "warm"), ("blue/deep/a.png", "cold"), ("absent.png", "cold")]
    file = folder / f"table.{format}"
    if format == "jsonl":
        file.write_text("".join(json.dumps({"file": name, "kind": kind}) + "\n" for name, kind in rows))
    else:
        with file.open("w", newline="") as stream:
            csv.writer(stream, delimiter="," if format == "csv" else "\t").writerows([("file", "kind"), *rows])
    found = read_image_table(file, image="file", label_column="kind")
    assert found.images == [folder / "red/b.PNG", folder / "blue/deep/a.png"]
    assert found.labels == ["warm", "cold"]
    assert "there is no such file beside the table" in str(found.problems[0])


@pytest.mark.parametrize("nested", [True, False])
def test_a_parquet_file_holds_the_pictures_themselves(tmp_path: Path, nested: bool) -> None:
    pyarrow = import_module("pyarrow")  # which the tests install
    from pyarrow import parquet

    contents = [png("red"), png("blue"), b""]
    images = [{"bytes": each, "path": "x.png"} for each in contents] if nested else contents
    parquet.write_table(pyarrow.table({"image": images, "label": [3, 10, 3]}), tmp_path / "set.parquet")
    found = read_image_table(tmp_path / "set.parquet")
    assert found.images == contents[:2]
    assert found.names == ("3", "10")
    assert len(found.problems) == 1
