"""Pictures out of packages become arrays that numpy reads."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tools import image_jobs
from tools.fetching import FetchError


@pytest.mark.parametrize("shape", [(3,), (50000, 32, 32, 3), (4, 2, 2)])
def test_the_head_of_an_array_is_one_that_numpy_reads(shape: tuple[int, ...]) -> None:
    content = image_jobs.npy_header(shape)
    assert len(content) % 64 == 0
    if shape[0] < 10:
        values = np.arange(np.prod(shape), dtype=np.uint8)
        read = np.load(io.BytesIO(content + values.tobytes()), allow_pickle=False)
        assert np.array_equal(read, values.reshape(shape))


def test_rows_of_pixels_become_pictures(tmp_path: Path) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (6, 2, 1024, 3), np.uint8)  # six files of two pictures
    names = [*(f"data_batch_{number}.png" for number in range(1, 6)), "test_batch.png"]
    for name, rows in zip(names, pixels, strict=True):
        Image.fromarray(rows).save(folder / name)
    (folder / "train_lables.json").write_text(json.dumps(list(range(10))))
    (folder / "test_lables.json").write_text("[3, 4]")
    made = {name: b"".join(content) for name, content in image_jobs.cifar([tmp_path])}
    train = np.load(io.BytesIO(made["train-images.npy"]))
    assert np.array_equal(train, pixels[:5].reshape(10, 32, 32, 3))
    assert np.load(io.BytesIO(made["test-labels.npy"])).tolist() == [3, 4]
    assert made["classes.txt"].startswith(b"airplane\n")
    (folder / "test_lables.json").write_text("[3, 4, 5]")
    with pytest.raises(FetchError, match=r"test_batch\.png does not hold a picture a row"):
        {name: b"".join(content) for name, content in image_jobs.cifar([tmp_path])}


def test_an_emoji_comes_in_every_tone(tmp_path: Path) -> None:
    folder = tmp_path / "package"
    (folder / "img/google/64").mkdir(parents=True)
    for name, opacity in (("a.png", 255), ("b.png", 0)):
        Image.new("RGBA", (64, 64), (9, 8, 7, opacity)).save(folder / "img/google/64" / name)
    (folder / "LICENSE").write_text("MIT")
    entry = {
        "name": "WAVING HAND", "short_name": "wave", "short_names": ["wave", "hello_there"], "category": "People",
        "subcategory": "hand", "unified": "1F44B", "image": "a.png", "has_img_google": True,
        "skin_variations": {"1F3FB": {"unified": "1F44B-1F3FB", "image": "b.png", "has_img_google": True}},
    }  # fmt: skip
    (folder / "emoji.json").write_text(json.dumps([entry]))
    made = {name: b"".join(content) for name, content in image_jobs.emoji([tmp_path])}
    rows = [json.loads(line) for line in made["emoji.jsonl"].splitlines()]
    assert [(row["name"], row["tone"], row["character"]) for row in rows] == [
        ("waving hand", "", "👋"),
        ("waving hand", "light skin", "👋🏻"),
    ]
    assert rows[0]["words"] == ["wave", "hello there"]
    pixels = np.load(io.BytesIO(made["images.npy"]))
    assert pixels.shape == (2, 64, 64, 4)
    assert pixels[:, 0, 0, 3].tolist() == [255, 0]
