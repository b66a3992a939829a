"""Drawings with titles and keywords out of the packages of the Open Clip Art Library."""

from __future__ import annotations

import html
import json
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from tools.fetching import FetchError, File, Job, Package, pieces
from tools.image_jobs import npy_header

SIDE = 64
PLACE = "usr/share/openclipart"
SUBJECT = re.compile(r"<dc:subject>(.*?)</dc:subject>", re.DOTALL)
WORD = re.compile(r"<rdf:li>(.*?)</rdf:li>", re.DOTALL)
TITLE = re.compile(r"<dc:title>(.*?)</dc:title>", re.DOTALL)
MOST_PIXELS = 2**26  # of a drawing; a few are larger than anyone needs
NOTHING = {"", "unsorted", "clip_art", "png", "svg"}  # keywords that say nothing


def clipart(packages: Sequence[Path]) -> Iterator[File]:
    """The drawings of one package, made small, and what the other says of each: its title, keywords and folders."""
    drawn, written = packages[0] / PLACE / "png", packages[1] / PLACE / "svg"
    files = sorted(drawn.rglob("*.png"), key=lambda file: file.relative_to(drawn).as_posix())
    files = [file for file in files if pixels_in(file) <= MOST_PIXELS]
    if not files:
        raise FetchError("The package holds no drawings where they were when this was written.")
    names = [file.relative_to(drawn).with_suffix("") for file in files]
    rows = (clipart_row(name, (written / f"{name}.svg").read_text("utf-8", errors="replace")) for name in names)
    yield "openclipart.jsonl", (json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
    yield "images.npy", clipart_pixels(files)
    yield "COPYRIGHT", pieces(packages[0] / "usr/share/doc/openclipart-png/copyright")


def pixels_in(file: Path) -> int:
    """As the head of a PNG file says."""
    with file.open("rb") as stream:
        width, height = struct.unpack(">II", stream.read(24)[16:])
    return int(width * height)


def clipart_row(name: Path, drawing: str) -> dict[str, Any]:
    """What a drawing says of itself; the title of the work comes before those of its makers."""
    title, subject = TITLE.search(drawing), SUBJECT.search(drawing)
    words = [_line(word) for word in WORD.findall(subject.group(1))] if subject else []
    return {
        "title": _line(title.group(1)) if title else "",
        "words": [word for word in dict.fromkeys(words) if word.lower() not in NOTHING],
        "folders": list(name.parts[:-1]),
        "file": f"{name.as_posix()}.png",
    }


def clipart_pixels(files: Sequence[Path]) -> Iterator[bytes]:
    """Each in the middle of a transparent square, as large as it fits."""
    yield npy_header((len(files), SIDE, SIDE, 4))
    for file in files:
        with Image.open(file) as image:
            drawing = image.convert("RGBA")
        drawing.thumbnail((SIDE, SIDE), Image.Resampling.BOX, reducing_gap=None)
        square = Image.new("RGBA", (SIDE, SIDE))
        square.paste(drawing, ((SIDE - drawing.width) // 2, (SIDE - drawing.height) // 2))
        yield square.tobytes()


def _line(text: str) -> str:
    return " ".join(html.unescape(text).split())


CLIPART_JOBS = [
    Job("openclipart", (Package("debian", "openclipart-png"), Package("debian", "openclipart-svg")), 156, clipart)
]
