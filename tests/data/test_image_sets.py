"""Sets of pictures as rows, from arrays and from files."""

import gzip
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qkv.data.image_files import LabelledImages
from qkv.data.image_sets import read_image_set, rows_of_images
from qkv.data.preprocessing import Exactly, Preprocessing, ShortestEdge
from qkv.errors import QkvError
from tests.data.test_idx import content

GREYS = np.arange(5 * 6 * 7).reshape(5, 6, 7).astype(np.uint8)
LABELS = np.array([0, 2, 1, 0, 2], np.uint8)


def write_idx(folder: Path) -> None:
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(content(GREYS, 8)))
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(content(LABELS, 8)))
    (folder / "t10k-images-idx3-ubyte").write_bytes(content(GREYS[:2], 8))
    (folder / "t10k-labels-idx1-ubyte").write_bytes(content(LABELS[:2], 8))


def test_idx_files_are_a_set(tmp_path: Path) -> None:
    write_idx(tmp_path)
    rows = read_image_set(tmp_path)
    assert np.array_equal(rows.pixels, GREYS)
    assert (rows.labels.tolist(), rows.names, rows.size) == ([0, 2, 1, 0, 2], ("0", "1", "2"), (1, 6, 7))
    assert len(read_image_set(tmp_path, "test")) == 2


def test_npy_files_are_a_set_that_stays_on_the_disk(tmp_path: Path) -> None:
    pixels = np.stack([GREYS] * 3, -1)
    np.save(tmp_path / "valid-images.npy", pixels)
    np.save(tmp_path / "valid-labels.npy", LABELS)
    (tmp_path / "classes.txt").write_text("cat\ndog\nhorse\nship\n")
    rows = read_image_set(tmp_path, "valid")
    assert isinstance(rows.pixels, np.memmap)
    assert np.array_equal(rows.pixels, pixels)
    assert rows.names == ("cat", "dog", "horse", "ship")


def test_broken_sets_are_told(tmp_path: Path) -> None:
    write_idx(tmp_path)
    with pytest.raises(QkvError, match="no images of a part 'valid'"):
        read_image_set(tmp_path, "valid")
    (tmp_path / "classes.txt").write_text("one\ntwo\n")
    with pytest.raises(QkvError, match="should name 3 different classes"):
        read_image_set(tmp_path)
    np.save(tmp_path / "train-labels.npy", LABELS[:3])
    (tmp_path / "classes.txt").unlink()
    with pytest.raises(QkvError, match="one label, but there are 5 and 3"):
        read_image_set(tmp_path)
    np.save(tmp_path / "train-labels.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(QkvError, match=r"no whole \.npy file of numbers"):
        read_image_set(tmp_path)
    (tmp_path / "train-labels.npy").write_bytes(b"cut")
    with pytest.raises(QkvError, match=r"no whole \.npy file of numbers"):
        read_image_set(tmp_path)


def pictures() -> LabelledImages:
    made = []
    for number in range(4):
        stream = io.BytesIO()
        Image.new("RGB", (10 + number, 20), (40 * number, 0, 0)).save(stream, "PNG")
        made.append(stream.getvalue())
    return LabelledImages([made[0], b"broken", *made[1:]], ["a", "a", "b", "a", "b"], ("a", "b"))


def test_files_become_rows_in_memory_and_on_the_disk(tmp_path: Path) -> None:
    way = Preprocessing(resize=Exactly(8, 6))
    held, problems = rows_of_images(pictures(), way)
    stored, same = rows_of_images(pictures(), way, tmp_path / "new" / "set.npy")
    assert held.size == stored.size == (3, 8, 6)
    assert isinstance(stored.pixels, np.memmap)
    assert np.array_equal(held.pixels, stored.pixels)
    assert held.pixels[:, 0, 0, 0].tolist() == [0, 40, 80, 120]
    assert held.labels.tolist() == stored.labels.tolist() == [0, 1, 0, 1]
    assert len(problems) == 1
    assert "picture line 2" in str(problems[0])
    assert problems == same


def test_pictures_that_make_no_rows_are_told(tmp_path: Path) -> None:
    bad = LabelledImages([b"x", b"y"], ["a", "b"], ("a", "b"))
    with pytest.raises(QkvError, match="None of the 2 pictures can be used"):
        rows_of_images(bad, Preprocessing(resize=Exactly(8, 8)))
    with pytest.raises(QkvError, match="pictures of one size"):
        rows_of_images(pictures(), Preprocessing(resize=ShortestEdge(8)))
    with pytest.raises(QkvError, match="is named otherwise"):
        rows_of_images(pictures(), Preprocessing(resize=Exactly(8, 8)), tmp_path / "set.bin")
