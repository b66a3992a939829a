"""Drawings and what they say of themselves become small pictures and rows."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tools import clipart_jobs
from tools.fetching import FetchError

SVG = """<svg><metadata><rdf:RDF><cc:Work>
<dc:title>Tom &amp; the
 Cat</dc:title><dc:subject><rdf:Bag><rdf:li>animal</rdf:li><rdf:li>unsorted</rdf:li><rdf:li>animal</rdf:li>
<rdf:li> big  cat </rdf:li></rdf:Bag></dc:subject>
<dc:creator><cc:Agent><dc:title>Someone</dc:title></cc:Agent></dc:creator>
</cc:Work></rdf:RDF></metadata></svg>"""


@pytest.fixture
def packages(tmp_path: Path) -> list[Path]:
    drawn, written = tmp_path / "one" / clipart_jobs.PLACE / "png", tmp_path / "two" / clipart_jobs.PLACE / "svg"
    for folder in (drawn / "animals" / "cats", written / "animals" / "cats"):
        folder.mkdir(parents=True)
    Image.new("RGBA", (128, 64), (200, 10, 20, 255)).save(drawn / "animals" / "cats" / "tom.png")
    Image.new("L", (10, 10), 90).save(drawn / "b.png")
    (written / "animals" / "cats" / "tom.svg").write_text(SVG)
    (written / "b.svg").write_text("<svg/>")
    (tmp_path / "one" / "usr/share/doc/openclipart-png").mkdir(parents=True)
    (tmp_path / "one" / "usr/share/doc/openclipart-png/copyright").write_text("public domain")
    return [tmp_path / "one", tmp_path / "two"]


def test_drawings_become_rows_and_squares(packages: list[Path]) -> None:
    made = {name: b"".join(content) for name, content in clipart_jobs.clipart(packages)}
    rows = [json.loads(line) for line in made["openclipart.jsonl"].splitlines()]
    assert rows == [
        {"title": "Tom & the Cat", "words": ["animal", "big cat"], "folders": ["animals", "cats"],
         "file": "animals/cats/tom.png"},
        {"title": "", "words": [], "folders": [], "file": "b.png"},
    ]  # fmt: skip
    pixels = np.load(io.BytesIO(made["images.npy"]))
    assert pixels.shape == (2, 64, 64, 4)
    assert pixels[0, 32, 32].tolist() == [200, 10, 20, 255]
    assert pixels[0, 8, 32, 3] == 0  # above it
    assert pixels[1, 32, 32].tolist() == [90, 90, 90, 255]  # what is small stays so
    assert pixels[1, 20, 32, 3] == 0


def test_a_drawing_that_would_fill_the_memory_is_left_out(
    packages: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clipart_jobs, "MOST_PIXELS", 1000)
    made = {name: b"".join(content) for name, content in clipart_jobs.clipart(packages)}
    assert np.load(io.BytesIO(made["images.npy"])).shape[0] == 1
    monkeypatch.setattr(clipart_jobs, "MOST_PIXELS", 10)
    with pytest.raises(FetchError, match="holds no drawings"):
        list(clipart_jobs.clipart(packages))
