"""`qkv train frames` and `qkv train speech`: what sound alone can teach, and then a little of it with its texts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    from qkv.data.sound_features import WaveFeatures
    from qkv.data.stored_sounds import SpokenWaves
    from qkv.generate.listen import Listener
    from qkv.generate.untuned import UntunedSound

MOST_SECONDS = 600.0  # of one file that is learned from
LONGEST_SPOKEN = 60.0  # of one with a text, which is learned whole
SPAN = 10  # frames that are hidden together [baevski2020 §4.2]


@dataclass(frozen=True, kw_only=True)
class FrameOptions:
    model: Annotated[
        str | None, typer.Option(help="wav2vec 2.0 to train further: a folder, or owner/name[@revision] on the hub.")
    ] = None
    size: Annotated[str, typer.Option(help="Size of a new model by name, or changes: width=128,layers=4")] = "desk"
    sound: Annotated[str, typer.Option(help="Column of a table with the names of sound files.")] = "file"
    seconds: Annotated[
        float, typer.Option(help="Of a row: the sounds of a folder are put one after the other and cut.")
    ] = 8.0
    hidden: Annotated[float, typer.Option(help="Share of frames that are hidden, counted without overlaps.")] = 0.65


@dataclass(frozen=True, kw_only=True)
class SpeechOptions:
    model: Annotated[
        str | None, typer.Option(help="wav2vec 2.0 to fine-tune: a folder, or owner/name[@revision] on the hub.")
    ] = None
    size: Annotated[
        str, typer.Option(help="Size of a new model by name, or changes; of a given one, dropout and what is hidden.")
    ] = "desk"
    sound: Annotated[str, typer.Option(help="Column of the table with the names of sound files.")] = "file"
    text: Annotated[str, typer.Option(help="Column of the table with what is said.")] = "text"
    head_first: Annotated[int, typer.Option(min=0, help="Updates in which only the head of a given model learns.")] = 0
    all_frames: Annotated[
        bool, typer.Option("--all-frames", help="Let the convolutions of a given model learn too.")
    ] = False


@with_groups
def frames(data: DataOptions, run: RunOptions, chosen: FrameOptions) -> None:
    """Pre-train a wav2vec 2.0 on sound alone: it learns to tell hidden frames from others of the same sound.

    --data is a folder with sound files in it or below it, or a table that names sound files. What comes of it can be
    fine-tuned: `qkv train speech --model`.

    \b
    Example (after the one that `qkv train sounds --help` shows):
      qkv train frames --data hums --steps 10 --seconds 1 --hold-out 0.2 --out runs/alone \\
        --size width=16,hidden=32,heads=2,layers=1,position_groups=2,position_kernel=8
    """
    from qkv.api.runs import check_folder
    from qkv.api.sound_pretraining import SoundPretraining, pretrain_on_sounds
    from qkv.cli.spellings import sizes_of
    from qkv.data.plan import RowCount
    from qkv.data.sound_features import WaveFeatures
    from qkv.data.span_hiding import SpanHiding
    from qkv.data.stored_sounds import stored_waves
    from qkv.train.reporter import Reporter
    from qkv.train.schedules import Linear

    refuse_length(run)
    check_folder(run.out, run.resume, run.overwrite)
    if chosen.model is not None and chosen.size != "desk":
        raise QkvError("--size is for a new model: leave it out beside --model.")
    model = None if chosen.model is None else loaded(chosen.model, run, letters=False)
    features = WaveFeatures() if model is None else model.features
    files = files_in(data.data, data, chosen.sound)
    held = None if data.valid is None else files_in(data.valid, data, chosen.sound)
    how = SoundPretraining(
        seconds=chosen.seconds,
        hide=SpanHiding(chosen.hidden, SPAN, 2),
        batching=RowCount(run.batch_rows),
        settings=replace(settings_of(run), patience=None),
        hold_out=data.hold_out,
        reporter=Reporter(),
        resume=run.resume,
        overwrite=run.overwrite,
        optimizer=optimizer_in(run, 5e-4, betas=(0.9, 0.98), epsilon=1e-6),
    )
    if run.warmup is not None or run.schedule is not None:
        how = replace(how, schedule=schedule_of(run, Linear(warmup=warmup_of(run))))
    with watched(run):
        pretrain_on_sounds(
            stored_waves(files, features, most_seconds=MOST_SECONDS),
            run.out,
            groups=[str(file.parent) for file in files],
            valid=None if held is None else stored_waves(held, features, most_seconds=MOST_SECONDS),
            model=model,  # type: ignore[arg-type]  # no letters were asked for
            sizes=sizes_of("wav2vec2", chosen.size),
            features=features,
            how=how,
        )
    report(run.out, [], seen=True, commands=[quoted("qkv", "train", "speech", "--model", run.out, "--data", "TABLE")])


@with_groups
def speech(data: DataOptions, run: RunOptions, chosen: SpeechOptions) -> None:
    """Train a model that writes down speech, letter by letter: a given wav2vec 2.0 further, or a new one.

    --data is a table of sound files, beside it, and of what is said in each. It validates by word error rate. Texts are
    learned as they are spelled: write them alike, in small letters and without punctuation.

    \b
    Example (after the one that `qkv train sounds --help` shows):
      printf 'file\\ttext\\n' > hums/said.tsv
      for i in 1 2 3 4 5; do printf "low/$i.au\\tlo\\nhigh/$i.au\\thi hi\\n" >> hums/said.tsv; done
      qkv train speech --data hums/said.tsv --hold-out 0.3 --steps 10 --out runs/said \\
        --size width=16,hidden=32,heads=2,layers=1,position_groups=2,position_kernel=8
      qkv run runs/said hums/low/3.au
    """
    from qkv.api.runs import check_folder, divided
    from qkv.api.speech_training import SpeechTraining, train_listener
    from qkv.cli.spellings import sizes_of
    from qkv.data.plan import RowCount
    from qkv.data.sound_features import WaveFeatures
    from qkv.data.stored_sounds import SpokenWaves
    from qkv.train.reporter import Reporter
    from qkv.train.schedules import WarmupStableDecay

    refuse_length(run)
    check_folder(run.out, run.resume, run.overwrite)
    if chosen.model is None and (chosen.head_first or chosen.all_frames):
        raise QkvError("--head-first and --all-frames are for a given model: a new one learns all from the start.")
    model = None if chosen.model is None else loaded(chosen.model, run, letters=True)
    features = WaveFeatures() if model is None else model.features
    rows, held = read_speech(data.data, data, chosen, features), None
    if data.valid is not None:
        held = read_speech(data.valid, data, chosen, features)
    elif data.hold_out:
        pairs = divided(list(zip(rows.waves, rows.texts, strict=True)), data.hold_out, key=lambda pair: pair[1])
        rows, held = (SpokenWaves(*zip(*part, strict=True)) for part in pairs)
    how = SpeechTraining(
        head_first=chosen.head_first,
        frozen_frames=not chosen.all_frames,
        batching=RowCount(run.batch_rows),
        settings=replace(settings_of(run), patience=None, watch="wer"),  # which may stay at 1 for a while
        hold_out=0.0,
        reporter=Reporter(),
        resume=run.resume,
        overwrite=run.overwrite,
        optimizer=optimizer_in(run, 3e-4, betas=(0.9, 0.98)),
    )
    if run.warmup is not None or run.schedule is not None:
        how = replace(how, schedule=schedule_of(run, WarmupStableDecay(warmup=warmup_of(run), decay=0.5)))
    sizes: Any = sizes_of("wav2vec2", chosen.size) if model is None else changes_in(chosen.size)
    with watched(run):
        trained = train_listener(rows, run.out, valid=held, model=model, sizes=sizes, features=features, how=how)
    shown = held or rows
    found = trained.run([wave.float() for wave in shown.waves[:EXAMPLES_SHOWN]])
    examples = [wanted(each.text, text) for each, text in zip(found, shown.texts, strict=False)]
    report(run.out, examples, held is None, [quoted("qkv", "run", run.out, "speech.wav")])


def refuse_length(run: RunOptions) -> None:
    if run.length is not None:
        raise QkvError("--length is for texts: sounds are as long as they are.")


def changes_in(spelled: str) -> dict[str, Any]:
    """`dropout=0.2,hidden_share=0.3` of a given model."""
    from qkv.cli.spellings import number

    pairs = [part.partition("=") for part in spelled.split(",")] if spelled != "desk" else []
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise QkvError(f"--size {wrong[0]} is for a new model: a given one keeps its size.")
    return {name: number(name, value) for name, _, value in pairs}


def loaded(folder: str, run: RunOptions, *, letters: bool) -> "UntunedSound | Listener":
    """The model to train further; with the letters that it writes, if they are asked for and it writes any."""
    import torch

    from qkv.generate.listen import Listener
    from qkv.generate.untuned import UntunedSound
    from qkv.parts.device import device_called

    device = device_called(run.device)
    found = UntunedSound.load(folder, device)
    torch.manual_seed(run.seed)
    writes = letters and found.model.head_choice.kind == "ctc"
    return Listener.load(folder, device) if writes else found


def files_in(place: str, data: DataOptions, column: str) -> Sequence[Path]:
    """Sound files of a folder or a table."""
    from qkv.api.pairs import report_problems
    from qkv.cli.spellings import names_of
    from qkv.data.sound_files import read_named_sounds, sound_files

    if Path(place).is_dir() and data.format is None:
        found = list(sound_files(Path(place)))
        if not found:
            raise QkvError(f"The folder {place} holds no sound: give one with sound files in it or below it.")
        return found
    named, problems = read_named_sounds(place, sound=column, names=names_of(data.names), format=data.format)
    report_problems(problems, lambda line: typer.echo(line, err=True))
    return named


def read_speech(place: str, data: DataOptions, chosen: SpeechOptions, features: "WaveFeatures") -> "SpokenWaves":
    from qkv.api.pairs import report_problems
    from qkv.cli.spellings import names_of
    from qkv.data.sound_files import read_spoken_table
    from qkv.data.stored_sounds import stored_speech

    found = read_spoken_table(
        place, sound=chosen.sound, text_column=chosen.text, names=names_of(data.names), format=data.format
    )
    report_problems(found.problems, lambda line: typer.echo(line, err=True))
    return stored_speech(found, features, most_seconds=LONGEST_SPOKEN)
