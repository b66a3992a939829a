"""`qkv train sounds`: a model of one's own that names what is heard."""

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
    wanted,
    warmup_of,
    watched,
)
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.api.sound_training import SoundTraining
    from qkv.data.labelled_sounds import LabelledSounds
    from qkv.generate.image_readers import ImageReader
    from qkv.generate.sound_readers import SoundReader

CHANGES = ("none", "light", "strong")
MOST_SECONDS = 600.0  # of one file that is learned from


@dataclass(frozen=True, kw_only=True)
class SoundOptions:
    model: Annotated[
        str | None, typer.Option(help="Model to fine-tune: a folder, or owner/name[@revision] on the hub.")
    ] = None
    family: Annotated[str, typer.Option(help="Family of a new model, where --model is not given: ast or wav2vec2.")] = (
        "ast"
    )
    size: Annotated[str, typer.Option(help="Size of a new model by name, or changes: width=128,layers=4")] = "desk"
    seconds: Annotated[
        float | None, typer.Option(help="What is heard at once; as long as the longest sound, at most 10.")
    ] = None
    start: Annotated[
        str | None, typer.Option(help="ViT or DeiT whose weights a new ast begins with, patches and widths alike.")
    ] = None
    sound: Annotated[str, typer.Option(help="Column of a table with the names of sound files.")] = "file"
    label: Annotated[str, typer.Option(help="Column of a table with the labels.")] = "label"
    change: Annotated[
        str,
        typer.Option(
            help="How sounds are changed while training: none, light (moved, noise) or strong (mixed, hidden)."
        ),
    ] = "light"


@with_groups
def sounds(data: DataOptions, run: RunOptions, sounds: SoundOptions) -> None:
    """Train a model that tells what is heard: a new one, or a loaded one further.

    --data is a folder with a folder of sound files for each class, or a table that names sound files.

    \b
    Example:
      mkdir -p hums/low hums/high
      printf '.snd\\0\\0\\0\\030\\377\\377\\377\\377\\0\\0\\0\\002\\0\\0\\037\\100\\0\\0\\0\\001' > 8000hz
      for i in 1 2 3 4 5; do (cat 8000hz; yes aaaaaaaaaaaaaaaaaaa | head -c 4${i}00) > hums/low/$i.au; done
      for i in 1 2 3 4 5; do (cat 8000hz; yes a | head -c 4${i}00) > hums/high/$i.au; done
      qkv train sounds --data hums --size width=16,hidden=32,heads=2,layers=1 --steps 40 --hold-out 0.2 --out runs/hums
      qkv run runs/hums hums/low/3.au
    """
    from qkv.api.runs import check_folder
    from qkv.api.sound_training import train_sound_classifier
    from qkv.data.classes import divided_rows
    from qkv.train.reporter import Reporter

    if run.length is not None:
        raise QkvError("--length is for texts: give --seconds for sounds.")
    if sounds.change not in CHANGES:
        raise QkvError(f"Sounds are changed in one of the ways {', '.join(CHANGES)}, not {sounds.change!r}.")
    check_folder(run.out, run.resume, run.overwrite)
    reader, begun = way_in(sounds, run)
    sizes = sizes_in(sounds)
    rows = read_rows(data.data, data, sounds, reader)
    held = None if data.valid is None else read_rows(data.valid, data, sounds, reader, rows.names)
    if held is None and data.hold_out:
        rows, held = divided_rows(rows, data.hold_out, run.seed)
    how = training_of(run, sounds, reader, Reporter())
    with watched(run, f"{run.batch_rows} sounds", "give fewer with --batch-rows, or less of each with --seconds"):
        trained = train_sound_classifier(
            rows,
            run.out,
            valid=held,
            model=reader,
            start=begun,
            family=sounds.family,
            sizes=sizes,
            seconds=sounds.seconds,
            how=how,
        )
    shown = held or rows
    found = trained.run(shown.waves[:EXAMPLES_SHOWN])
    examples = [wanted(each.label, shown.names[int(label)]) for each, label in zip(found, shown.labels, strict=False)]
    commands = [quoted("qkv", verb, run.out, "sound.wav") for verb in ("run", "look")]
    report(run.out, examples, held is None, commands)


def sizes_in(sounds: SoundOptions) -> dict[str, Any]:
    """The size that was asked for; how many frames an AST sees follows from how long it hears."""
    from qkv.api.sound_training import FAMILIES, FOLLOWING
    from qkv.cli.spellings import sizes_of

    if sounds.family not in FAMILIES:
        raise QkvError(f"Family {sounds.family} does not decide about sounds: take {' or '.join(FAMILIES)}.")
    if any(part.partition("=")[0] in FOLLOWING for part in sounds.size.split(",")):
        raise QkvError("How many frames a new model sees follows from how long it hears: give --seconds.")
    values = sizes_of(sounds.family, sounds.size)
    return {name: value for name, value in values.items() if name not in FOLLOWING}


def way_in(sounds: SoundOptions, run: RunOptions) -> "tuple[SoundReader | None, ImageReader | None]":
    """The model to fine-tune, or the one of pictures to begin with."""
    from qkv.api.loading import load
    from qkv.generate.image_readers import ImageReader
    from qkv.generate.sound_readers import SoundReader

    if sounds.model is not None:
        if sounds.size != "desk" or sounds.family != "ast" or sounds.start is not None:
            raise QkvError("--family, --size and --start are for a new model: leave them out beside --model.")
        found = load(sounds.model, run.device)
        if not isinstance(found, SoundReader):
            raise QkvError(
                f"{sounds.model} is no model that decides about sounds, or can learn to: give an AST, or a wav2vec 2.0 "
                "with a head for states."
            )
        return found, None
    if sounds.start is None:
        return None, None
    seer = load(sounds.start, "cpu")
    if not isinstance(seer, ImageReader):
        raise QkvError(f"{sounds.start} is no model of single pictures: give one such as a ViT or a DeiT.")
    return None, seer


def read_rows(
    place: str,
    data: DataOptions,
    sounds: SoundOptions,
    reader: "SoundReader | None",
    classes: tuple[str, ...] | None = None,
) -> "LabelledSounds":
    """Sounds out of a folder of classes or a table, at the rate that the model hears."""
    from qkv.api.pairs import report_problems
    from qkv.api.sound_training import RATE
    from qkv.cli.spellings import names_of
    from qkv.data.labelled_sounds import read_labelled_sounds
    from qkv.data.sound_files import read_sound_folder, read_sound_table

    if Path(place).is_dir() and data.format is None:
        found = read_sound_folder(place, classes)
    else:
        found = read_sound_table(
            place,
            sound=sounds.sound,
            label_column=sounds.label,
            classes=classes,
            names=names_of(data.names),
            format=data.format,
        )
    rate = RATE if reader is None else reader.features.rate
    rows, problems = read_labelled_sounds(found, rate, most_seconds=MOST_SECONDS)
    report_problems(problems, lambda line: typer.echo(line, err=True))
    return rows


def training_of(run: RunOptions, sounds: SoundOptions, reader: "SoundReader | None", reporter: Any) -> "SoundTraining":
    from qkv.api.sound_training import SoundTraining
    from qkv.data.augment import InTurn, Noise, Roll, SpecAugment, WaveMixing
    from qkv.data.plan import RowCount
    from qkv.data.sound_features import WaveFeatures
    from qkv.train.schedules import Linear

    waves = sounds.family == "wav2vec2" if reader is None else isinstance(reader.features, WaveFeatures)
    light = InTurn((Noise(), Roll(1600 if waves else 10)))  # up to a tenth of a second
    hidden = () if waves else (SpecAugment(bands=24, frames=24),)  # [gong2021 §3.2]
    strong = InTurn((*hidden, *light.steps))
    return SoundTraining(
        augment={"none": None, "light": light, "strong": strong}[sounds.change],
        mixing=WaveMixing() if sounds.change == "strong" else None,
        batching=RowCount(run.batch_rows),
        settings=settings_of(run, "accuracy"),
        optimizer=optimizer_in(run, 1e-4 if reader is not None or sounds.start else 1e-3),
        schedule=schedule_of(run, Linear(warmup=warmup_of(run))),
        hold_out=0.0,
        reporter=reporter,
        resume=run.resume,
        overwrite=run.overwrite,
    )
