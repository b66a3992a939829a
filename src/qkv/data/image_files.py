"""Pictures with a label each, as people keep them: a folder a class, or a table of files or of their content."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from qkv.data.columns import label, one_of, text
from qkv.data.images import SUFFIXES, Source
from qkv.data.labelled import class_names
from qkv.data.records import STANDARD_INPUT
from qkv.data.table import Problem, read_table
from qkv.data.token_rows import Ints
from qkv.errors import QkvError
from qkv.files import is_file

Item = TypeVar("Item")


@dataclass(frozen=True)
class LabelledImages:
    """Pictures that were found and not yet read, and the name of each one's class."""

    images: list[Source]
    labels: list[str]
    names: tuple[str, ...]  # of all classes, in the order of a model's logits
    problems: list[Problem] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.images)

    def numbers(self) -> Ints:
        """The labels as places in `names`. [n]"""
        place = {name: number for number, name in enumerate(self.names)}
        return np.array([place[name] for name in self.labels])


def read_image_folder(folder: Path | str, classes: Sequence[str] | None = None) -> LabelledImages:
    """A folder of folders: each is named as its class, and every image file in it or below it belongs to the class.

    With `classes`, say of a trained model, a folder of another name is an error.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise QkvError(f"There is no folder {folder}: give the one that holds a folder for each class.")
    below = [each for each in sorted(folder.iterdir()) if each.is_dir() and not each.name.startswith(".")]
    found = {each.name: list(image_files(each)) for each in below}
    if not any(found.values()):
        raise QkvError(f"{folder} should hold a folder for each class with images in it, and it holds none.")
    if empty := [name for name, files in found.items() if not files]:
        raise QkvError(
            f"The folder {folder / empty[0]} holds no image: remove it, or put the images of its class there."
        )
    if classes is not None and (strange := sorted(set(found) - set(classes))):
        raise QkvError(f"The folder {folder / strange[0]} is named as none of the classes {', '.join(classes)}.")
    names = tuple(classes) if classes is not None else class_names(list(found))
    images: list[Source] = [file for files in found.values() for file in files]
    labels = [name for name, files in found.items() for _ in files]
    return LabelledImages(images, labels, names)


def image_files(folder: Path) -> Iterable[Path]:
    """Every file below a folder that is named as an image, in the order of names."""
    return (
        file
        for file in sorted(folder.rglob("*"))
        if file.suffix.lower() in SUFFIXES and file.is_file() and not file.name.startswith(".")
    )


def read_image_table(
    path: Path | str,
    *,
    image: str = "image",
    label_column: str = "label",
    classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    format: str | None = None,
) -> LabelledImages:
    """Columns of a table as labelled pictures: names of files beside the table, or in parquet their content.

    A name is taken from the table's own folder. Content may be bytes, or as hub data sets have it: a struct with
    `bytes` and `path`. A row without a file is a bad row; whether a file is an image shows only when it is read.
    """
    folder = Path() if str(path) == STANDARD_INPUT else Path(path)
    folder = folder if folder.is_dir() else folder.parent
    kinds = {image: picture_from(folder), label_column: label if classes is None else one_of(classes)}
    table = read_table(path, [image, label_column], kinds=kinds, names=names, format=format)
    labels: list[str] = table.column(label_column)
    found = tuple(classes) if classes is not None else class_names(labels)
    return LabelledImages(table.column(image), labels, found, table.problems)


def picture_from(folder: Path) -> Callable[[Any], Source]:
    """What a column of pictures holds: the name of a file that is there, or content."""

    def kind(value: Any) -> Source:
        if isinstance(value, dict):
            value = value.get("bytes") or value.get("path")
        if isinstance(value, bytes):
            if not value:
                raise ValueError("is empty")
            return value
        file = folder / text(value)
        if not is_file(file):
            raise ValueError(f"names {str(value)[:80]!r}, and there is no such file beside the table")
        return file

    return kind
