"""`qkv train patches`: what pictures alone can teach, before anybody names what they show."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.groups import with_groups
from qkv.cli.train_images import PictureOptions, changes_of, place_for, sizes_in, way_in
from qkv.cli.train_optimizer import optimizer_in
from qkv.cli.train_options import DataOptions, RunOptions, quoted, report, schedule_of, settings_of, warmup_of, watched
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.data.image_rows import ImageRows
    from qkv.data.preprocessing import Preprocessing

CHANGES = ("none", "light")


@dataclass(frozen=True, kw_only=True)
class PatchOptions:
    model: Annotated[
        str | None, typer.Option(help="ViT to train further: a folder, or owner/name[@revision] on the hub.")
    ] = None
    size: Annotated[str | None, typer.Option(help="Size of a new model by name, or changes: width=128,layers=4")] = None
    side: Annotated[
        int | None,
        typer.Option(min=4, help="Pixels a side of what the model reads; 32, or as the given model was made for."),
    ] = None
    image: Annotated[str, typer.Option(help="Column of a table with the image files, or their content.")] = "image"
    stored: Annotated[
        Path | None, typer.Option(help="File (.npy) to keep prepared pictures in, where they are many.")
    ] = None
    change: Annotated[str, typer.Option(help="How pictures are changed: none or light (moved, mirrored).")] = "light"
    hidden: Annotated[float, typer.Option(help="Share of the patches of a picture that are hidden.")] = 0.5


@with_groups
def patches(data: DataOptions, run: RunOptions, chosen: PatchOptions) -> None:
    """Pre-train a ViT on pictures without labels: it learns the mean colours of patches that are hidden from it.

    --data is a folder with image files in it or below it; or a table that names image files; or a folder in which
    MNIST and its kin are published. What comes of it can be fine-tuned: `qkv train images --model`.

    \b
    Example (after the one that `qkv train images --help` shows):
      qkv train patches --data pictures --side 16 --size width=16,hidden=32,heads=2,layers=1 --steps 40 \\
        --hold-out 0.2 --out runs/patches
      qkv train images --data pictures --model runs/patches --steps 40 --hold-out 0.2 --out runs/finer
    """
    from qkv.api.choices import DESK, named_sizes
    from qkv.api.image_training import ImageTraining, pretrain_image_model
    from qkv.api.runs import check_folder
    from qkv.data.patch_hiding import PatchHiding
    from qkv.data.plan import RowCount
    from qkv.models.catalogue import find_family
    from qkv.train.reporter import Reporter
    from qkv.train.schedules import Cosine

    if run.length is not None:
        raise QkvError("--length is for texts: give --side for the size of pictures.")
    if chosen.change not in CHANGES:
        raise QkvError(f"Pictures are changed in one of the ways {', '.join(CHANGES)}, not {chosen.change!r}.")
    hiding = PatchHiding(chosen.hidden)
    check_folder(run.out, run.resume, run.overwrite)
    pictures = PictureOptions(
        model=chosen.model, size=chosen.size, side=chosen.side, image=chosen.image, stored=chosen.stored
    )
    reader, preprocessing = way_in(pictures, run)
    rows = read_pictures(data.data, "train", data, pictures, preprocessing)
    held = None if data.valid is None else read_pictures(data.valid, "test", data, pictures, preprocessing)
    how = ImageTraining(
        augment=changes_of(chosen.change, rows.size[1]),
        batching=RowCount(run.batch_rows),
        settings=settings_of(run),
        optimizer=optimizer_in(run, 1e-3),
        schedule=schedule_of(run, Cosine(warmup=warmup_of(run))),
        hold_out=data.hold_out,
        reporter=Reporter(),
        resume=run.resume,
        overwrite=run.overwrite,
    )
    sizes = sizes_in("vit", chosen.size, named_sizes(find_family("vit"), DESK))
    with watched(run):
        pretrain_image_model(rows, run.out, valid=held, model=reader, sizes=sizes, hiding=hiding, how=how)
    report(
        run.out, [], seen=True, commands=[quoted("qkv", "train", "images", "--model", run.out, "--data", "pictures")]
    )


def read_pictures(
    place: str, part: str, data: DataOptions, pictures: PictureOptions, preprocessing: "Preprocessing"
) -> "ImageRows":
    """Pictures out of a folder, a table or a published set, whatever is said of them there."""
    from qkv.api.pairs import report_problems
    from qkv.cli.spellings import names_of
    from qkv.data.image_files import image_files, picture_from
    from qkv.data.image_rows import without_labels
    from qkv.data.image_sets import is_image_set, prepared_pixels, read_image_set
    from qkv.data.images import Source
    from qkv.data.table import Problem, read_table

    if is_image_set(place, part):
        if pictures.side is not None or pictures.stored is not None:
            raise QkvError(f"{place} holds pictures of a size of their own: leave out --side and --stored.")
        return without_labels(read_image_set(place, part).pixels)
    found: list[Source] = []
    problems: list[Problem] = []
    folder = Path(place)
    if folder.is_dir() and data.format is None:
        found = list(image_files(folder))
        if not found:
            raise QkvError(f"The folder {place} holds no image: give one with image files in it or below it.")
    else:
        kinds = {pictures.image: picture_from(folder if folder.is_dir() else folder.parent)}
        table = read_table(place, [pictures.image], kinds=kinds, names=names_of(data.names), format=data.format)
        found, problems = table.column(pictures.image), table.problems
    file = place_for(len(found), part, pictures, preprocessing)
    pixels, _, unread = prepared_pixels(found, preprocessing, file)
    report_problems([*problems, *unread], lambda line: typer.echo(line, err=True))
    return without_labels(pixels)
