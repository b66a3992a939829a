"""`qkv train captions`: a model of one's own that compares pictures with texts, as CLIP does."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.groups import with_groups
from qkv.cli.train_images import CHANGES, changes_of
from qkv.cli.train_optimizer import optimizer_in
from qkv.cli.train_options import (
    EXAMPLES_SHOWN,
    DataOptions,
    RunOptions,
    divide,
    quoted,
    report,
    schedule_of,
    settings_of,
    short,
    wanted,
    warmup_of,
    watched,
)
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.data.captioned import Captioned
    from qkv.data.preprocessing import Preprocessing
    from qkv.generate.image_text import ImageTextReader

FOLLOWING = ("image", "channels", "vocabulary", "end")  # sizes that follow from the data
CLASSES_SHOWN = 3  # of the command that is told at the end


@dataclass(frozen=True, kw_only=True)
class CaptionOptions:
    model: Annotated[
        str | None, typer.Option(help="Model to train further: a folder, or owner/name[@revision] on the hub.")
    ] = None
    size: Annotated[
        str, typer.Option(help="Size of a new model by name, or changes: image_width=128,text_layers=2")
    ] = "desk"
    side: Annotated[int | None, typer.Option(min=4, help="Pixels a side of what a new model reads; 64.")] = None
    tokenizer: Annotated[
        str | None, typer.Option(help="Of a new model: a kind, a kind and the most tokens, or a tokenizer.json.")
    ] = None
    image: Annotated[str, typer.Option(help="Column of the table with the image files, or their content.")] = "image"
    text: Annotated[
        str, typer.Option(help="Column with the captions: a text, or a list of texts that are all right.")
    ] = "text"
    stored: Annotated[
        Path | None, typer.Option(help="File (.npy) to keep prepared pictures in, where they are many.")
    ] = None
    change: Annotated[
        str, typer.Option(help="How pictures are changed while training: none, light (moved, mirrored) or strong.")
    ] = "none"


@with_groups
def captions(data: DataOptions, run: RunOptions, pictures: CaptionOptions) -> None:
    """Train a model that tells how well a picture and a text go together: a new CLIP, or a loaded one further.

    --data is a table that names image files beside it and has a caption for each. Larger --batch-rows are better:
    every caption of a batch is a wrong answer to all the other pictures.

    \b
    Example:
      for i in 1 2 3 4 5; do printf "P3 1 1 255 25$i 4$i 0" > warm$i.ppm; done
      for i in 1 2 3 4 5; do printf "P3 1 1 255 0 4$i 25$i" > cold$i.ppm; done
      printf 'image,text\\n' > colours.csv
      for i in 1 2 3 4 5; do printf "warm$i.ppm,warm\\ncold$i.ppm,cold\\n"; done >> colours.csv
      qkv train captions --data colours.csv --side 16 --tokenizer word --size image_layers=1,text_layers=1 \\
        --steps 20 --hold-out 0 --out runs/captions
      qkv run runs/captions warm3.ppm --classes warm,cold --template '{}'
    """
    from qkv.api.caption_training import train_image_text
    from qkv.api.runs import check_folder
    from qkv.cli.spellings import tokenizer_of
    from qkv.train.reporter import Reporter

    if run.length is not None:
        raise QkvError("--length is not for captions: a model's own `positions` say how long its texts may be.")
    if pictures.change not in CHANGES:
        raise QkvError(f"Pictures are changed in one of the ways {', '.join(CHANGES)}, not {pictures.change!r}.")
    check_folder(run.out, run.resume, run.overwrite)
    reader, preprocessing = way_in(pictures, run)
    things = read_things(data.data, "train", data, pictures, preprocessing)
    held = None if data.valid is None else read_things(data.valid, "valid", data, pictures, preprocessing)
    if held is None and data.hold_out:
        kept, left = divide(range(len(things)), data.hold_out, key=lambda thing: things.captions[thing][0])
        things, held = things.some(kept), things.some(left)
    how = training_of(run, pictures, things, reader is not None, held is not None, Reporter())
    chosen: dict[str, Any] = {"model": reader}
    if reader is None:
        chosen = {"sizes": sizes_in(pictures), "tokenizer": tokenizer_of(pictures.tokenizer or "bpe:8000")}
    with watched(run):
        trained = train_image_text(things, run.out, valid=held, how=how, **chosen)
    shown = held or things
    labels = list(dict.fromkeys(captions[0] for captions in shown.captions))
    some = range(min(EXAMPLES_SHOWN, len(shown)))
    found = trained.run([_picture(shown, number) for number in some], labels, templates=("{}",))
    examples = [
        wanted(short(each.label), short(shown.captions[number][0])) for number, each in zip(some, found, strict=True)
    ]
    classes = ",".join(label for label in labels if "," not in label) if len(labels) <= CLASSES_SHOWN else "cat,dog"
    report(run.out, examples, held is None, [quoted("qkv", "run", run.out, "photo.jpg", "--classes", classes)])


def way_in(pictures: CaptionOptions, run: RunOptions) -> "tuple[ImageTextReader | None, Preprocessing]":
    """The model to train further, if there is one, and how pictures become its inputs."""
    from qkv.api.loading import load
    from qkv.data.preprocessing import HALF, Exactly, Normalise, Preprocessing
    from qkv.generate.image_text import ImageTextReader

    if pictures.model is None:
        side = pictures.side or 64
        return None, Preprocessing(
            resize=Exactly(side, side), filter="bicubic", normalise=Normalise(1 / 255, HALF, HALF)
        )
    if pictures.side is not None or pictures.size != "desk" or pictures.tokenizer is not None:
        raise QkvError("--size, --side and --tokenizer are for a new model: leave them out beside --model.")
    found = load(pictures.model, run.device)
    if not isinstance(found, ImageTextReader):
        raise QkvError(f"{pictures.model} is no model of pictures and texts: give one such as a CLIP.")
    return found, found.preprocessing


def sizes_in(pictures: CaptionOptions) -> dict[str, Any]:
    from qkv.cli.spellings import sizes_of

    if any(part.partition("=")[0] in FOLLOWING for part in pictures.size.split(",")):
        raise QkvError("What a new model reads follows from the data: give --side and --tokenizer in place of a size.")
    return {name: value for name, value in sizes_of("clip", pictures.size).items() if name not in FOLLOWING}


def read_things(
    place: str, part: str, data: DataOptions, pictures: CaptionOptions, preprocessing: "Preprocessing"
) -> "Captioned":
    """Captioned pictures out of a table."""
    from qkv.api.pairs import report_problems
    from qkv.cli.spellings import names_of
    from qkv.data.captioned import Captioned, read_captions
    from qkv.data.image_sets import prepared_pixels

    found = read_captions(
        place, image=pictures.image, caption=pictures.text, names=names_of(data.names), format=data.format
    )
    file = pictures.stored
    if file is not None and part != "train":
        file = file.with_stem(f"{file.stem}-{part}")
    pixels, good, problems = prepared_pixels(found.images, preprocessing, file)
    report_problems([*found.problems, *problems], lambda line: typer.echo(line, err=True))
    return Captioned(pixels, [found.captions[number] for number in good])


def training_of(
    run: RunOptions, pictures: CaptionOptions, things: "Captioned", tuned: bool, held: bool, reporter: Any
) -> Any:
    from qkv.api.caption_training import CaptionTraining
    from qkv.data.plan import RowCount
    from qkv.train.schedules import Cosine

    how = {"betas": (0.9, 0.98), "epsilon": 1e-6, "weight_decay": 0.2}
    return CaptionTraining(
        augment=changes_of(pictures.change, things.pixels.shape[1]),
        batching=RowCount(run.batch_rows),
        settings=settings_of(run, "accuracy" if held else None),
        optimizer=optimizer_in(run, 1e-5 if tuned else 5e-4, **how),
        schedule=schedule_of(run, Cosine(warmup=warmup_of(run))),  # [radford2021 §2.5]
        hold_out=0.0,
        reporter=reporter,
        resume=run.resume,
        overwrite=run.overwrite,
    )


def _picture(things: "Captioned", number: int) -> Any:
    from PIL import Image

    return Image.fromarray(things.pixels[things.shown[number][0]])
