"""Boxes around the objects of pictures, as people keep them: a JSON object a line, or one COCO file.

Boxes are in pixels of the upright picture, x to the right and y down; x1 and y1 are where the object has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv.data.columns import is_number, label
from qkv.data.image_files import picture_from
from qkv.data.images import Source
from qkv.data.table import Problem, read_table
from qkv.errors import QkvError
from qkv.files import is_file, read_json


@dataclass(frozen=True)
class Box:
    """An object of a picture: what it is, how likely that is, and where."""

    label: str
    probability: float
    x0: float
    y0: float
    x1: float
    y1: float

    @property
    def corners(self) -> tuple[float, float, float, float]:
        return self.x0, self.y0, self.x1, self.y1


@dataclass(frozen=True)
class BoxedImage:
    """A picture that was found and not yet read, and all the objects in it."""

    image: Source
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class BoxedImages:
    """Pictures with their objects."""

    items: Sequence[BoxedImage]
    names: tuple[str, ...]  # of all classes, in the order of a model's logits
    problems: list[Problem] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.items)


def read_box_table(
    path: Path | str, *, image: str = "image", boxes: str = "boxes", classes: Sequence[str] | None = None
) -> BoxedImages:
    """A table with a column of pictures and one of their objects: `[{"label": "cat", "box": [x0, y0, x1, y1]}, …]`.

    JSONL and parquet hold such lists. A picture without objects has an empty one.
    """
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    table = read_table(path, [image, boxes], kinds={image: picture_from(folder), boxes: _boxes(classes)})
    items = [BoxedImage(row[image], row[boxes]) for row in table.rows]
    return BoxedImages(items, _names(items, classes), table.problems)


def read_coco(file: Path | str, images: Path | str | None = None, classes: Sequence[str] | None = None) -> BoxedImages:
    """Pictures and objects of a COCO annotation file; `images` is the pictures' folder, by default the file's own.

    Annotations of whole crowds are left out, as DETR leaves them out; so are objects of other classes than `classes`.
    """
    file = Path(file)
    folder, content = file.parent if images is None else Path(images), read_json(file)
    try:
        names = {each["id"]: str(each["name"]) for each in content["categories"]}
        wanted = tuple(names[key] for key in sorted(names)) if classes is None else tuple(classes)
        found: dict[Any, list[Box]] = {each["id"]: [] for each in content["images"]}
        problems = []
        for number, each in enumerate(content["annotations"], start=1):
            if each.get("iscrowd") or names[each["category_id"]] not in wanted:
                continue
            x, y, width, height = each["bbox"]
            try:
                found[each["image_id"]].append(checked_box(names[each["category_id"]], (x, y, x + width, y + height)))
            except ValueError as error:
                problems.append(Problem(str(file), number, f"the annotation {error}"))
        items = [
            BoxedImage(_existing(folder / str(each["file_name"]), file), tuple(found[each["id"]]))
            for each in content["images"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        missing = f" ({error.args[0]!r} is missing)" if isinstance(error, KeyError) else ""
        raise QkvError(
            f"{file} is no COCO file{missing}: it needs images with id and file_name, categories with id and name, and "
            "annotations with image_id, category_id and bbox [x, y, width, height]."
        ) from error
    if not items:
        raise QkvError(f"{file} names no picture.")
    return BoxedImages(items, wanted, problems)


def coco_annotations(images: Sequence[Mapping[str, Any]], boxes: Sequence[Sequence[Box]], names: Sequence[str]) -> Any:
    """The content of a COCO file: `images` with at least id and file_name, and the objects of each."""
    place = {name: number for number, name in enumerate(names, start=1)}
    pairs = [(image, box) for image, some in zip(images, boxes, strict=True) for box in some]
    annotations = [
        {
            "id": number,
            "image_id": image["id"],
            "category_id": place[box.label],
            "bbox": [box.x0, box.y0, box.x1 - box.x0, box.y1 - box.y0],
            "area": (box.x1 - box.x0) * (box.y1 - box.y0),
            "iscrowd": 0,
        }
        for number, (image, box) in enumerate(pairs, start=1)
    ]
    categories = [{"id": number, "name": name} for name, number in place.items()]
    return {"images": list(images), "annotations": annotations, "categories": categories}


def checked_box(name: str, numbers: Sequence[Any], probability: float = 1.0) -> Box:
    """A box that has an inside; what is wrong with another, as the rest of a sentence."""
    if len(numbers) != 4 or not all(is_number(each) for each in numbers):
        raise ValueError(f"has a box of {list(numbers)}, not of four numbers x0, y0, x1, y1")
    x0, y0, x1, y1 = (float(each) for each in numbers)
    if not (x0 < x1 and y0 < y1):
        raise ValueError(f"has a box without an inside: {x0:g}, {y0:g}, {x1:g}, {y1:g}")
    return Box(name, probability, x0, y0, x1, y1)


def _boxes(classes: Sequence[str] | None) -> Any:
    def kind(value: Any) -> tuple[Box, ...]:
        if not isinstance(value, list):
            raise ValueError("holds no list of objects")
        return tuple(_objects(value, classes))

    return kind


def _objects(values: list[Any], classes: Sequence[str] | None) -> Iterator[Box]:
    for value in values:
        if not isinstance(value, dict) or not isinstance(value.get("box"), list):
            raise ValueError('holds an object that is not {"label": …, "box": [x0, y0, x1, y1]}')
        name = label(value.get("label"))
        if classes is not None and name not in classes:
            raise ValueError(f"holds {name[:40]!r}, which is none of {', '.join(classes)}")
        yield checked_box(name, value["box"])


def _names(items: Sequence[BoxedImage], classes: Sequence[str] | None) -> tuple[str, ...]:
    if classes is not None:
        return tuple(classes)
    labels = {box.label for item in items for box in item.boxes}
    if not labels:
        raise QkvError("None of the pictures has an object: there is nothing to learn from.")
    return tuple(sorted(labels))


def _existing(picture: Path, file: Path) -> Path:
    if not is_file(picture):
        raise QkvError(f"{file} names the picture {picture}, and there is no such file.")
    return picture
