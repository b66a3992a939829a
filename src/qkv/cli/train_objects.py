"""`qkv train objects`: a model of one's own that finds things in pictures, as DETR does."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.groups import with_groups
from qkv.cli.train_optimizer import optimizer_in
from qkv.cli.train_options import (
    EXAMPLES_SHOWN,
    DataOptions,
    RunOptions,
    quoted,
    report,
    schedule_of,
    settings_of,
    warmup_of,
    watched,
)
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.data.boxes import BoxedImages
    from qkv.generate.detect import Detector

CLIP = 0.1  # largest norm of a gradient [carion2020 §A.4]


@dataclass(frozen=True, kw_only=True)
class ObjectOptions:
    model: Annotated[
        str | None, typer.Option(help="Model to train further: a folder, or owner/name[@revision] on the hub.")
    ] = None
    size: Annotated[str, typer.Option(help="Size of a new model by name, or changes: width=64,queries=10")] = "desk"
    side: Annotated[
        int | None, typer.Option(min=16, help="Pixels a side that all pictures are made for a new model; 128.")
    ] = None
    pictures: Annotated[
        Path | None, typer.Option(help="Folder of the pictures that a COCO file names, where it is not its own.")
    ] = None
    image: Annotated[str, typer.Option(help="Column of a table with the image files, or their content.")] = "image"
    boxes: Annotated[str, typer.Option(help="Column with the objects: [{label, box: [x0, y0, x1, y1]}, …].")] = "boxes"
    backbone_rate: Annotated[
        float | None, typer.Option(help="Share of the rate for the residual network; 1 for a new model, else 0.1.")
    ] = None
    mirrored: Annotated[float, typer.Option(help="Share of pictures that are shown as in a mirror.")] = 0.5
    workers: Annotated[int, typer.Option(min=1, help="Processes that read pictures for a new model.")] = 1


@with_groups
def objects(data: DataOptions, run: RunOptions, things: ObjectOptions) -> None:
    """Train a model that finds objects in pictures and draws boxes around them: a new DETR, or a loaded one further.

    --data is a COCO annotation file (.json); or a JSONL or parquet table that names image files beside it and lists the
    objects of each, boxes in pixels. Such a model learns slowly: think of hours, not minutes, on pictures of your own.

    \b
    Example:
      for i in 1 2 3 4 5 6; do printf "P3 1 1 255 2$i 4$i 200" > sea$i.ppm; done
      for i in 1 2 3 4 5 6; do
        echo '{"image": "sea'$i'.ppm", "boxes": [{"label": "sea", "box": [0, 0, 1, 1]}]}'; done > seas.jsonl
      qkv train objects --data seas.jsonl --side 32 --size width=32,queries=3,layers=1 --steps 4 --out runs/seas
      qkv run runs/seas sea1.ppm --least 0
    """
    from qkv.api.detection_training import divided_boxes, train_detector
    from qkv.api.runs import check_folder
    from qkv.data.stored_boxes import store_boxes
    from qkv.train.reporter import Reporter

    if run.length is not None:
        raise QkvError("--length is for texts: give --side for the size of pictures.")
    check_folder(run.out, run.resume, run.overwrite)
    loaded = loaded_detector(things, run)
    found = read_boxed(data.data, data, things)
    held = None if data.valid is None else read_boxed(data.valid, data, things, found.names)
    if held is None and data.hold_out:
        found, held = divided_boxes(found, data.hold_out, run.seed)
    shown = [item.image for item in (held or found).items[:EXAMPLES_SHOWN]]
    how = training_of(run, things, loaded is not None, held is not None, Reporter())
    if loaded is not None:
        with watched(run):
            trained = train_detector(found, run.out, valid=held, model=loaded, how=how)
    else:
        side = (things.side or 128,) * 2
        stored = store_boxes(found, side, workers=things.workers)
        kept = None if held is None else store_boxes(held, side, workers=things.workers)
        with watched(run):
            trained = train_detector(stored, run.out, valid=kept, sizes=sizes_in(things), how=how)
    examples = [
        ", ".join(f"{box.label} {box.probability:.2f}" for box in boxes) or "nothing"
        for boxes in trained.run(shown, threshold=0.5)
    ]
    report(run.out, examples, held is None, [quoted("qkv", "run", run.out, "photo.jpg", "--draw", "found")])


def sizes_in(things: ObjectOptions) -> dict[str, Any]:
    from qkv.cli.spellings import sizes_of

    return {**sizes_of("detr", things.size), "map_norm": "batch"}


def loaded_detector(things: ObjectOptions, run: RunOptions) -> "Detector | None":
    from qkv.api.loading import load
    from qkv.generate.detect import Detector

    if things.model is None:
        return None
    if things.side is not None or things.size != "desk" or things.workers != 1:
        raise QkvError("--size, --side and --workers are for a new model: leave them out beside --model.")
    found = load(things.model, run.device)
    if not isinstance(found, Detector):
        raise QkvError(f"{things.model} does not find objects: give a model such as a DETR.")
    return found


def read_boxed(
    place: str, data: DataOptions, things: ObjectOptions, classes: tuple[str, ...] | None = None
) -> "BoxedImages":
    """Pictures with boxes out of a COCO file or a table."""
    from qkv.api.pairs import report_problems
    from qkv.data.boxes import read_box_table, read_coco

    if data.names or data.format is not None:
        raise QkvError("--names and --format are not for objects: give a COCO file, or a table in JSONL or parquet.")
    if Path(place).suffix == ".json":
        found = read_coco(place, things.pictures, classes)
    elif things.pictures is not None:
        raise QkvError("--pictures belongs to a COCO file: the pictures of a table lie beside it.")
    else:
        found = read_box_table(place, image=things.image, boxes=things.boxes, classes=classes)
    report_problems(found.problems, lambda line: typer.echo(line, err=True))
    return found


def training_of(run: RunOptions, things: ObjectOptions, tuned: bool, held: bool, reporter: Any) -> Any:
    from dataclasses import replace

    from qkv.api.detection_training import DetectionTraining
    from qkv.data.plan import RowCount
    from qkv.train.adapt.backbone import BackboneRate
    from qkv.train.schedules import WarmupStableDecay

    if not 0 <= things.mirrored <= 1:
        raise QkvError(f"The share of mirrored pictures is from 0 to 1, not {things.mirrored:g}.")
    share = (0.1 if tuned else 1.0) if things.backbone_rate is None else things.backbone_rate
    return DetectionTraining(
        mirrored=things.mirrored,
        batching=RowCount(run.batch_rows),
        settings=replace(settings_of(run, "map" if held else None), clip=CLIP),
        optimizer=optimizer_in(run, 1e-4 if tuned else 4e-4, weight_decay=1e-4, rates=BackboneRate(share)),
        schedule=schedule_of(run, WarmupStableDecay(warmup=warmup_of(run), decay=0.3)),
        hold_out=0.0,
        reporter=reporter,
        resume=run.resume,
        overwrite=run.overwrite,
    )
