"""`qkv train images`: a model of one's own that names what pictures show."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.groups import with_groups
from qkv.cli.train_chosen import learning_line
from qkv.cli.train_images_chosen import LINEAR_PROBE, told_asked, told_changes, told_model, told_verdict
from qkv.cli.train_optimizer import optimizer_in
from qkv.cli.train_options import (
    EXAMPLES_SHOWN,
    DataOptions,
    RunOptions,
    quoted,
    report,
    schedule_of,
    settings_of,
    wanted,
    warmup_of,
    watched,
)
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.api.image_choice import Judged
    from qkv.api.image_training import ImageTraining
    from qkv.data.augment import Augmentation
    from qkv.data.image_rows import ImageRows
    from qkv.data.preprocessing import Preprocessing
    from qkv.generate.image_readers import ImageReader
    from qkv.train.reporter import Reporter

AUTO = "auto"
CHANGES = ("none", "light", "strong")
SIDE = 32  # pixels of a new model; smaller pictures are enlarged, so that convolutions find room in them
FOLLOWING = ("image", "channels")  # sizes that follow from the pictures
NEW_ROWS, TUNED_ROWS = 64, 16  # pictures of a batch
NARROW, NARROW_RATE, NEW_RATE, TUNED_RATE = 128, 2e-3, 1e-3, 1e-4  # a narrow model bears a higher rate
NEW_SMOOTHING = 0.05
RISE = 0.1  # share of a run
MOST_BYTES = 4 * 2**30  # of prepared pictures in memory


@dataclass(frozen=True, kw_only=True)
class PictureOptions:
    model: Annotated[
        str | None, typer.Option(help="Model to fine-tune: a folder, or owner/name[@revision] on the hub.")
    ] = None
    family: Annotated[str, typer.Option(help="Family of a new model, where --model is not given: vit or deit.")] = "vit"
    size: Annotated[
        str | None,
        typer.Option(
            help="Size of a new model by name, or changes of the one that suits the pictures: width=128,layers=6"
        ),
    ] = None
    side: Annotated[
        int | None,
        typer.Option(min=4, help="Pixels a side of what the model reads; 32, or as the given model was made for."),
    ] = None
    teacher: Annotated[
        str | None, typer.Option(help="Model of the same classes that a deit learns from besides: a folder, or a name.")
    ] = None
    image: Annotated[str, typer.Option(help="Column of a table with the image files, or their content.")] = "image"
    label: Annotated[str, typer.Option(help="Column of a table with the labels.")] = "label"
    stored: Annotated[
        Path | None, typer.Option(help="File (.npy) to keep prepared pictures in, where they are many.")
    ] = None
    change: Annotated[
        str,
        typer.Option(
            help="How pictures are changed while training: auto (in such ways as leave them what they are), none, "
            "light (moved, mirrored) or strong."
        ),
    ] = AUTO


@dataclass(frozen=True, kw_only=True)
class PictureRunOptions(RunOptions):
    # What a batch holds follows from the model where nothing is said.
    batch_rows: Annotated[int | None, typer.Option(min=1, help="Pictures of a batch; 64, or 16 with --model.")] = None  # type: ignore[assignment]
    warmup: Annotated[
        int | None,
        typer.Option(
            help="Updates over which the rate rises; by default a tenth of the run, and with --model 50, or a tenth of "
            "--steps if that is less."
        ),
    ] = None


@with_groups
def images(data: DataOptions, run: PictureRunOptions, pictures: PictureOptions) -> None:
    """Train a model that tells what a picture shows: a new one, or a loaded one further.

    --data is a folder with a folder of image files for each class; or a table that names image files; or a folder in
    which MNIST and its kin are published. What is not said is chosen by the pictures and told in three lines.

    \b
    Example:
      mkdir -p pictures/warm pictures/cold
      for i in 1 2 3 4 5; do printf "P3 1 1 255 25$i 4$i 0" > pictures/warm/$i.ppm; done
      for i in 1 2 3 4 5; do printf "P3 1 1 255 0 4$i 25$i" > pictures/cold/$i.ppm; done
      qkv train images --data pictures --side 16 --size width=16,hidden=32,heads=2,layers=1 --steps 40 \\
        --hold-out 0.2 --out runs/colours
      qkv run runs/colours pictures/warm/3.ppm
    """
    from qkv.api.image_choice import judged, sizes_for
    from qkv.api.image_training import train_image_classifier
    from qkv.api.runs import check_folder
    from qkv.api.training import read_result
    from qkv.data.classes import divided_rows
    from qkv.parts.device import device_called
    from qkv.train.reporter import Reporter

    if run.length is not None:
        raise QkvError("--length is for texts: give --side for the size of pictures.")
    if pictures.change not in (ways := (AUTO, *CHANGES)):
        raise QkvError(f"Pictures are changed in one of the ways {', '.join(ways)}, not {pictures.change!r}.")
    check_folder(run.out, run.resume, run.overwrite)
    reader, preprocessing = way_in(pictures, run)
    batch = run.batch_rows or (NEW_ROWS if reader is None else TUNED_ROWS)
    rows = read_rows(data.data, "train", data, pictures, preprocessing)
    held = None if data.valid is None else read_rows(data.valid, "test", data, pictures, preprocessing, rows.names)
    if held is None and data.hold_out:
        rows, held = divided_rows(rows, data.hold_out, run.seed)
    found = judged(rows, held, run.out if run.resume else None, changes=pictures.change == AUTO)
    beside = None if found.linear is None else {LINEAR_PROBE: found.linear}
    reporter, sizes, rate = Reporter(), dict[str, Any](), TUNED_RATE
    if reader is None:
        suits = sizes_for(pictures.family, rows.size[1], small=device_called(run.device).type == "cpu")
        sizes = sizes_in(pictures.family, pictures.size, suits)
        rate = NARROW_RATE if sizes["width"] <= NARROW else NEW_RATE
        reporter.say(told_model(pictures.family, rows.size[1], sizes))
    how = training_of(run, pictures, rows, found, reader is not None, batch, rate, reporter)
    head, objective = lesson(pictures, run, rows, reader, how.smoothing)
    reporter.say(told_changes(found) if pictures.change == AUTO else told_asked(pictures.change))
    reporter.say(learning_line(run, str(batch), rate, how.schedule, how.settings))
    with watched(run, f"{batch} pictures", "give fewer with --batch-rows"):
        trained = train_image_classifier(
            rows,
            run.out,
            valid=held,
            model=reader,
            family=pictures.family,
            sizes=sizes,
            head=head,
            objective=objective,
            how=how,
            evaluate=None if beside is None else lambda _: beside,
        )
    shown = held or rows
    examples = [
        wanted(found.label, shown.names[int(shown.labels[number])])
        for number, found in enumerate(
            trained.run([_picture(shown, i) for i in range(min(EXAMPLES_SHOWN, len(shown)))])
        )
    ]
    verdict = told_verdict(read_result(run.out).figures)
    report(run.out, examples, held is None, [quoted("qkv", "run", run.out, "photo.jpg")], verdict)


def sizes_in(family: str, spelled: str | None, suits: Mapping[str, Any]) -> dict[str, Any]:
    """The size that was asked for, or the one that suits, perhaps changed; what pictures it reads follows from them.

    Who asks for patches gets them, without convolutions before them.
    """
    from qkv.cli.spellings import sizes_of

    asked = [part.partition("=")[0] for part in (spelled or "").split(",")]
    if any(name in FOLLOWING for name in asked):
        raise QkvError("What pictures a new model reads follows from them: give --side in place of a size.")
    base = {name: value for name, value in suits.items() if name != "stem" or "patch" not in asked or "stem" in asked}
    values = sizes_of(family, spelled, base=base) if spelled else base
    return {name: value for name, value in values.items() if name not in FOLLOWING}


def lesson(
    pictures: PictureOptions, run: RunOptions, rows: "ImageRows", reader: "ImageReader | None", smoothing: float
) -> tuple[str, Any]:
    """The head to train and the objective to train it by; None: the task's own."""
    from qkv.api.image_training import distillation_from
    from qkv.api.loading import load
    from qkv.generate.image_readers import ImageClassifier
    from qkv.models.catalogue import find_family

    if pictures.teacher is None:
        return "classification", None
    family = pictures.family if reader is None else reader.model.family
    if "distilled" not in find_family(family).heads:
        raise QkvError(f"A model of family {family} has no token to learn from a teacher with: give --family deit.")
    teacher = load(pictures.teacher, run.device)
    if not isinstance(teacher, ImageClassifier):
        raise QkvError(f"{pictures.teacher} does not name classes of pictures, so it cannot teach them.")
    own = None if reader is None else reader.preprocessing
    return "distilled", distillation_from(teacher, rows, own, smoothing=smoothing)


def way_in(pictures: PictureOptions, run: RunOptions) -> "tuple[ImageReader | None, Preprocessing]":
    """The model to fine-tune, if there is one, and how pictures become its inputs."""
    from qkv.api.loading import load
    from qkv.data.preprocessing import HALF, Exactly, Normalise, Preprocessing
    from qkv.generate.image_readers import ImageReader, use_of_images
    from qkv.weights.resolution import at_resolution

    if pictures.model is None:
        side = pictures.side or SIDE
        return None, Preprocessing(
            resize=Exactly(side, side), filter="bicubic", normalise=Normalise(1 / 255, HALF, HALF)
        )
    if pictures.size is not None or pictures.family != "vit":
        raise QkvError("--family and --size are for a new model: leave them out beside --model.")
    found = load(pictures.model, run.device)
    if not isinstance(found, ImageReader):
        raise QkvError(f"{pictures.model} is no model of single pictures: give one such as a ViT or a DeiT.")
    if pictures.side is not None and found.preprocessing.size != (pictures.side, pictures.side):
        larger = at_resolution(found.model, pictures.side)
        found = use_of_images(larger, found.preprocessing.at(pictures.side))
    return found, found.preprocessing


def read_rows(
    place: str,
    part: str,
    data: DataOptions,
    pictures: PictureOptions,
    preprocessing: "Preprocessing",
    classes: tuple[str, ...] | None = None,
) -> "ImageRows":
    """Pictures out of a folder of classes, a table or a published set."""
    from qkv.api.pairs import report_problems
    from qkv.cli.spellings import names_of
    from qkv.data.image_files import read_image_folder, read_image_table
    from qkv.data.image_sets import is_image_set, read_image_set, rows_of_images

    if is_image_set(place, part):
        if pictures.side is not None or pictures.stored is not None:
            raise QkvError(f"{place} holds pictures of a size of their own: leave out --side and --stored.")
        return read_image_set(place, part)
    if Path(place).is_dir() and data.format is None:
        found = read_image_folder(place, classes)
    else:
        found = read_image_table(
            place,
            image=pictures.image,
            label_column=pictures.label,
            classes=classes,
            names=names_of(data.names),
            format=data.format,
        )
    rows, problems = rows_of_images(found, preprocessing, place_for(len(found), part, pictures, preprocessing))
    report_problems(problems, lambda line: typer.echo(line, err=True))
    return rows


def place_for(count: int, part: str, pictures: PictureOptions, preprocessing: "Preprocessing") -> Path | None:
    """The file that prepared pictures of a part go to; None where they stay in memory, as far as they fit."""
    if pictures.stored is not None:
        return pictures.stored if part == "train" else pictures.stored.with_stem(f"{pictures.stored.stem}-{part}")
    height, width = preprocessing.size or (0, 0)
    if count * height * width * 3 > MOST_BYTES:
        raise QkvError(f"{count:,} pictures do not fit in memory: give a file for them with --stored.")
    return None


def changes_of(change: str, side: int) -> "Augmentation | None":
    """How pictures of this height are changed while training."""
    from qkv.data.augment import Flip, InTurn, RandAugment, RandomErasing, Shift

    moved = (Shift(max(1, side // 8)), Flip())
    return {
        "none": None,
        "light": InTurn(moved),
        "strong": InTurn((*moved, RandAugment(2, 9, 0.5), RandomErasing(0.25))),  # [touvron2021 tab.9]
    }[change]


def training_of(
    run: PictureRunOptions,
    pictures: PictureOptions,
    rows: "ImageRows",
    found: "Judged",
    tuned: bool,
    batch: int,
    rate: float,
    reporter: "Reporter",
) -> "ImageTraining":
    from qkv.api.image_choice import augmentation_of
    from qkv.api.image_training import ImageTraining
    from qkv.data.augment import Mixing
    from qkv.data.plan import RowCount
    from qkv.train.schedules import Linear, TriStage

    strong, auto = pictures.change == "strong", pictures.change == AUTO
    settings = settings_of(run, "accuracy")
    if not tuned and not run.average and run.ema is None:
        # The rate falls to nothing, so the last weights are the best: a few held-out pictures would choose by chance.
        settings = replace(settings, average=1, patience=None)
    rises = not tuned and run.warmup is None
    usual = TriStage(rise=RISE, hold=0.0) if rises else Linear(warmup=warmup_of(run))
    return ImageTraining(
        augment=augmentation_of(found.changes()) if auto else changes_of(pictures.change, rows.size[1]),
        mixing=Mixing() if strong else None,
        smoothing=0.1 if strong else NEW_SMOOTHING if auto and not tuned else 0.0,
        batching=RowCount(batch),
        settings=settings,
        optimizer=optimizer_in(run, rate),
        schedule=schedule_of(run, usual),
        hold_out=0.0,
        judged=found.record(),
        reporter=reporter,
        resume=run.resume,
        overwrite=run.overwrite,
    )


def _picture(rows: "ImageRows", number: int) -> Any:
    from PIL import Image

    pixels = rows.pixels[number]
    return Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[-1] == 1 else pixels)
