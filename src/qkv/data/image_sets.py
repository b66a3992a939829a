"""Whole sets of small pictures: as MNIST and its kin are published, as `.npy` files, or made from image files.

A folder holds, for each part (`train`, `test`), pictures and labels under one of these names, and perhaps `classes.txt`
with the name of a class a line:

    train-images-idx3-ubyte.gz   train-labels-idx1-ubyte.gz     IDX, packed or not; the test part is called t10k
    train-images.npy             train-labels.npy               uint8 [n h w c] or [n h w], whole numbers [n]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.data.idx import read_idx
from qkv.data.image_files import LabelledImages
from qkv.data.image_rows import ImageRows, Pixels, map_array, store_pixels
from qkv.data.images import Source
from qkv.data.preprocessing import Preprocessing
from qkv.data.table import Problem
from qkv.errors import QkvError

CLASSES_FILE = "classes.txt"
OF_IDX = {"test": "t10k"}


def read_image_set(folder: Path | str, part: str = "train") -> ImageRows:
    """One part of a set; `.npy` files stay on the disk and are read where they are touched."""
    folder = Path(folder)
    pixels = _part(folder, part, "images", "idx3")
    labels = _part(folder, part, "labels", "idx1")
    if not np.issubdtype(labels.dtype, np.integer) or labels.ndim != 1 or not len(labels) or labels.min() < 0:
        raise QkvError(f"The labels of the part {part} in {folder} should be whole numbers from 0 on, one a picture.")
    return ImageRows(pixels, labels.astype(np.int64), _names(folder, int(labels.max()) + 1))


def is_image_set(folder: Path | str, part: str = "train") -> bool:
    """Whether a folder holds pictures of a part in one of these ways."""
    return any((Path(folder) / name).is_file() for name in _readers(part, "images", "idx3"))


def _readers(part: str, what: str, kind: str) -> dict[str, Callable[[Path], NDArray[Any]]]:
    of_idx = f"{OF_IDX.get(part, part)}-{what}-{kind}-ubyte"
    return {f"{part}-{what}.npy": map_array, f"{of_idx}.gz": read_idx, of_idx: read_idx}


def _part(folder: Path, part: str, what: str, kind: str) -> NDArray[Any]:
    readers = _readers(part, what, kind)
    for name, read in readers.items():
        if (folder / name).is_file():
            return read(folder / name)
    raise QkvError(f"{folder} has no {what} of a part {part!r}: it needs one of the files {', '.join(readers)}.")


def _names(folder: Path, least: int) -> tuple[str, ...]:
    """The names of the classes, or their numbers where no file names them."""
    file = folder / CLASSES_FILE
    if not file.is_file():
        return tuple(map(str, range(least)))
    names = tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    if len(names) < least or len(set(names)) < len(names):
        raise QkvError(
            f"{file} should name {least} different classes or more, one a line, and names {len(set(names))}."
        )
    return names


def rows_of_images(
    images: LabelledImages, preprocessing: Preprocessing, file: Path | str | None = None
) -> tuple[ImageRows, list[Problem]]:
    """Pictures read, resized and cropped; in memory, or with a `file` (.npy) on the disk. Bad pictures are left out.

    What comes back beside the rows says which, and why; only if none can be read it is an error.
    """
    pixels, good, problems = prepared_pixels(images.images, preprocessing, file)
    return ImageRows(pixels, images.numbers()[good], images.names), [*images.problems, *problems]


def prepared_pixels(
    images: Sequence[Source], preprocessing: Preprocessing, file: Path | str | None = None
) -> tuple[Pixels, list[int], list[Problem]]:
    """The same for pictures alone: [n h w c], which of them there are, and what is wrong with the others."""
    if preprocessing.size is None:
        raise QkvError("Rows need pictures of one size: resize them exactly, or crop them.")
    height, width = preprocessing.size
    problems: list[Problem] = []
    good: list[int] = []

    def picture(place: int) -> Pixels | None:
        try:
            array: Pixels = preprocessing.pixels(images[place]).permute(1, 2, 0).numpy()
            return array
        except QkvError as error:
            problems.append(Problem("picture", place + 1, str(error)))
            return None

    if file is None:
        held = [(place, made) for place in range(len(images)) if (made := picture(place)) is not None]
        good = [place for place, _ in held]
        pixels: Pixels = np.stack([made for _, made in held]) if held else np.empty(0, np.uint8)
    else:
        size = (height, width, len(preprocessing.normalise.mean))
        pixels, good = store_pixels(Path(file), len(images), size, picture)
    if not good:
        raise QkvError(f"None of the {len(images)} pictures can be used; the first problem is {problems[0]}.")
    return pixels, good, problems
