"""`qkv run` with a model that finds objects or keypoints: inputs are the names of image files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.inputs import Input
from qkv.cli.run_reading import in_json
from qkv.errors import QkvError

if TYPE_CHECKING:
    from PIL import Image

    from qkv.generate.detect import Detector
    from qkv.generate.keypoints import KeypointFinder

USUAL_LEAST = 0.5  # probability of what is shown


@dataclass(frozen=True, kw_only=True)
class SceneOptions:
    """What is told of a scene, and whether it is drawn."""

    least: Annotated[
        float | None, typer.Option(help="Least probability of objects and points, 0.5 if not given.", metavar="SHARE")
    ] = None
    draw: Annotated[
        str | None, typer.Option(help="Folder for the pictures with what was found, as PNG.", metavar="FOLDER")
    ] = None


def find_objects(model: "Detector", inputs: list[Input], before: int, request: Any) -> Iterator[str]:
    """A line for each object: number of its picture, probability, x0, y0, x1, y1, label."""
    from qkv.look.boxes import draw_boxes

    files = [file for file, _ in inputs]
    least = _least(request)
    for number, (file, boxes) in enumerate(
        zip(files, model.run(files, threshold=least), strict=True), start=before + 1
    ):
        if request.scenes.draw is not None:
            _write(draw_boxes(file, boxes), request.scenes.draw, number, file)
        if request.as_json:
            found = [{"label": each.label, "probability": each.probability, "box": each.corners} for each in boxes]
            yield in_json(input=file, boxes=found)
        else:
            for each in boxes:
                yield f"{number}\t{each.probability:.4f}\t{_numbers(each.corners)}\t{each.label}"


def find_points(model: "KeypointFinder", inputs: list[Input], before: int, request: Any) -> Iterator[str]:
    """A line for each keypoint of the one thing of a picture: number of the picture, probability, x, y, name."""
    from qkv.look.boxes import draw_points

    files = [file for file, _ in inputs]
    least = _least(request)
    for number, (file, things) in enumerate(zip(files, model.run(files), strict=True), start=before + 1):
        points = [each for each in things[0] if each.probability >= least]
        if request.scenes.draw is not None:
            drawn = draw_points(file, [(each.name, each.probability, each.x, each.y) for each in points])
            _write(drawn, request.scenes.draw, number, file)
        if request.as_json:
            found = [{"name": each.name, "probability": each.probability, "point": [each.x, each.y]} for each in points]
            yield in_json(input=file, points=found)
        else:
            for each in points:
                yield f"{number}\t{each.probability:.4f}\t{_numbers((each.x, each.y))}\t{each.name}"


def _least(request: Any) -> float:
    least: float | None = request.scenes.least
    if least is not None and not 0 <= least <= 1:
        raise QkvError(f"A least probability is from 0 to 1, not {least:g}.")
    return USUAL_LEAST if least is None else least


def _numbers(values: Sequence[float]) -> str:
    return "\t".join(f"{each:.1f}" for each in values)


def _write(picture: "Image.Image", folder: str, number: int, file: str) -> None:
    """Named after its number and its file, so that no two pictures of one name meet."""
    from qkv.look.draw import write_png

    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        write_png(picture, place / f"{number}-{Path(file).stem}.png")
    except OSError as error:
        raise QkvError(f"Cannot write to {place}: {error}; make room or name another folder.") from error
