"""Small valid tables, annotations, pictures and sounds, as people keep them."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow
from PIL import Image
from pyarrow import parquet

from tests.cli import hostile_images, hostile_sounds
from tests.fuzz.folders import Seed, seed_of

ROWS = [
    {"source": f"word {number}", "target": f"Größe {number}", "label": "ab"[number % 2], "number": str(number)}
    for number in range(8)
]


def tables(folder: Path) -> Iterator[Seed]:
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()
    text = "".join(",".join(map(str, row)) + "\n" for row in [list(ROWS[0]), *(list(row.values()) for row in ROWS)])
    quoted = text.encode() + b'"a ""b"",\nc",d,a,9\n'
    contents = {
        "rows.jsonl": lines,
        "rows.jsonl.gz": gzip.compress(lines, mtime=0),
        "rows.csv": quoted,
        "rows.tsv": text.replace(",", "\t").encode(),
        "rows.tsv.xz": lzma.compress(text.replace(",", "\t").encode()),
    }
    yield from _files(folder, contents)


def parquet_tables(folder: Path) -> Iterator[Seed]:
    table = pyarrow.Table.from_pylist([{**row, "count": 7, "more": {"x": [0.5], "y": None}} for row in ROWS])
    contents = {}
    for compression in ("none", "snappy", "zstd", "gzip"):
        stream = io.BytesIO()
        parquet.write_table(table, stream, compression=compression, use_dictionary=compression != "none")
        contents[f"{compression}.parquet"] = stream.getvalue()
    yield from _files(folder, contents)


COCO = {
    "images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "a.png"}],
    "categories": [{"id": 1, "name": "cat"}, {"id": 3, "name": "dog"}],
    "annotations": [
        {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 5, 5], "iscrowd": 0, "area": 25},
        {"id": 2, "image_id": 2, "category_id": 3, "bbox": [1.5, 1, 2, 3], "iscrowd": 0, "area": 6},
    ],
}
SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "x",
            "paragraphs": [
                {
                    "context": "The cat sat on the mat.",
                    "qas": [
                        {"id": "1", "question": "Who sat?", "answers": [{"text": "cat", "answer_start": 4}]},
                        {"id": "2", "question": "Why?", "answers": [], "is_impossible": True},
                    ],
                }
            ],
        }
    ],
}
CONLL = b"-DOCSTART- -X- O O\n\nEU NNP B-ORG\nrejects VBZ O\nGerman JJ B-MISC\n\nPeter NNP B-PER\nBlackburn NNP I-PER\n"


def annotations(folder: Path) -> Iterator[Seed]:
    boxes = [{"image": "a.png", "boxes": [{"label": "cat", "box": [0, 0, 5, 5]}]}, {"image": "a.png", "boxes": []}]
    contents = {
        "coco.json": json.dumps(COCO).encode(),
        "boxes.jsonl": "".join(json.dumps(row) + "\n" for row in boxes).encode(),
        "squad.json": json.dumps(SQUAD).encode(),
        "words.conll": CONLL,
    }
    picture = hostile_images.content(hostile_images.picture(8, 8), "PNG")
    for seed in _files(folder, contents):
        yield Seed(seed.name, {**seed.files, "a.png": picture}, seed.changed)


def pictures(folder: Path) -> Iterator[Seed]:
    small = hostile_images.picture(12, 9)
    contents: dict[str, bytes] = {
        f"a.{format.lower()}": hostile_images.content(small, format)
        for format in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP")
    }
    contents["palette.png"] = hostile_images.see_through_palette()[0]
    contents["deep.png"] = hostile_images.deep_grey()[0]
    exif = Image.Exif()
    exif[hostile_images.ORIENTATION] = 6
    contents["turned.jpg"] = hostile_images.content(small, "JPEG", exif=exif)
    contents["compressed.tif"] = hostile_images.content(small, "TIFF", compression="tiff_lzw")
    yield from _files(folder, contents)


def sounds(folder: Path) -> Iterator[Seed]:
    voice = hostile_sounds.voice(0.02)
    content: Callable[..., bytes] = hostile_sounds.content
    contents = {
        "a.wav": content(voice),
        "float.wav": content(voice, subtype="FLOAT"),
        "stereo.wav": content(hostile_sounds.voice(0.02, channels=2), subtype="PCM_24"),
        "a.flac": content(voice, format="FLAC"),
        "a.ogg": content(voice, format="OGG"),
        "a.mp3": content(voice, format="MP3"),
    }
    yield from _files(folder, contents)


def idx_arrays(folder: Path) -> Iterator[Seed]:
    values = np.arange(24, dtype=np.uint8)
    plain = struct.pack(">4B3I", 0, 0, 8, 3, 2, 3, 4) + values.tobytes()
    floats = struct.pack(">4BI", 0, 0, 0x0D, 1, 6) + values[:6].astype(">f4").tobytes()
    yield from _files(folder, {"bytes.idx": plain, "floats.idx": floats, "bytes.idx.gz": gzip.compress(plain, mtime=0)})


def _files(folder: Path, contents: dict[str, bytes]) -> Iterator[Seed]:
    """A folder of its own for each file."""
    for name, content in contents.items():
        place = folder / name.replace(".", "-")
        place.mkdir()
        (place / name).write_bytes(content)
        yield seed_of(place, place.name)
