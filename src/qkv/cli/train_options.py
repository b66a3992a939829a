"""What the trainings of text models have in common: options, how they become values, and how a training ends."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from qkv.cli.groups import BY_COMMAND
from qkv.cli.train_optimizer import OptimizerOptions, optimizer_in, schedule_in, tell_rate
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.api.distilling import Distillation
    from qkv.api.fine_tuning import FineTuning
    from qkv.generate.reader import TextReader
    from qkv.models.text_model import TextModel
    from qkv.train.adapt import LoRA
    from qkv.train.reporter import Reporter
    from qkv.train.schedules import Schedule
    from qkv.train.settings import TrainSettings

EXAMPLES_SHOWN = 5
WARMUP = 50  # steps at most, where a person does not say
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    data: Annotated[str, typer.Option(help="TSV, CSV, JSONL or parquet: a file, a folder, or - for standard input.")]
    names: Annotated[str, typer.Option(help="Columns of a file without a header line: text,label")] = ""
    format: Annotated[str | None, typer.Option(help="tsv, csv, jsonl or parquet, where no file name tells.")] = None
    valid: Annotated[str | None, typer.Option(help="Table to validate on, with the same columns.")] = None
    hold_out: Annotated[float, typer.Option(help="Share to validate on without --valid; 0: none.")] = 0.05


@dataclass(frozen=True, kw_only=True)
class RunBasics(OptimizerOptions):
    """What runs of any batches have."""

    out: Annotated[Path, typer.Option(help="Folder for the model and the history of its training.")] = field(
        metadata={BY_COMMAND: lambda command: Path("runs") / command}
    )
    steps: Annotated[int | None, typer.Option(help="Train for so many updates.")] = None
    minutes: Annotated[float | None, typer.Option(help="Train for so long; 5 where --steps is not given either.")] = (
        None
    )
    learning_rate: Annotated[
        float | None, typer.Option(help="Peak of the learning rate; by default what suits the task.")
    ] = None
    warmup: Annotated[
        int | None, typer.Option(help="Updates over which the rate rises; 50, or a tenth of --steps if that is less.")
    ] = None
    precision: Annotated[str, typer.Option(help="float32, bfloat16 or float8; auto: bfloat16 on a GPU.")] = "auto"
    device: Annotated[str, typer.Option(help="cpu, cuda, mps, xpu or auto.")] = "auto"
    seed: Annotated[int, typer.Option(help="Of weights, batches and dropout.")] = 0
    evaluate_every: Annotated[int, typer.Option(help="Steps between evaluations, each with a checkpoint.")] = 100
    gradient_norms: Annotated[
        bool, typer.Option("--gradient-norms", help="Record what each layer does, for `qkv layers` to draw.")
    ] = False
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin anew where the folder holds a run.")] = False


@dataclass(frozen=True, kw_only=True)
class RunOptions(RunBasics):
    batch_rows: Annotated[int, typer.Option(min=1, help="Texts, or rows of text, of a batch.")] = 16
    length: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of a text or row; what is longer is cut or divided.")
    ] = None
    save_every: Annotated[
        int | None, typer.Option(help="Steps between checkpoints, where not as between evaluations.")
    ] = None
    keep: Annotated[int, typer.Option(help="Newest checkpoints that are kept, beside the best.")] = 2
    keep_every: Annotated[int | None, typer.Option(help="Keep the checkpoints of every so many steps for good.")] = None
    roll_back: Annotated[
        float | None, typer.Option(help="Go back to a checkpoint when the loss is so many times the usual, such as 2.")
    ] = None

    def __post_init__(self) -> None:
        if self.find_rate:
            if self.resume or self.overwrite:
                raise QkvError("--find-rate comes before a run and changes none: leave out --resume and --overwrite.")
            object.__setattr__(self, "out", self.out.with_name(f".{self.out.name}-rate"))  # is looked for, never made


@dataclass(frozen=True, kw_only=True)
class AdaptOptions:
    freeze: Annotated[
        int, typer.Option(min=0, help="Leave the embeddings and so many of the first layers as they are.")
    ] = 0
    lora: Annotated[
        int | None, typer.Option(min=1, help="Train low-rank updates of this rank in place of the weights.")
    ] = None
    layer_decay: Annotated[
        float | None, typer.Option(help="Each layer learns this much of the rate of the one above it, such as 0.9.")
    ] = None


def settings_of(run: RunOptions, watch: str | None = None) -> "TrainSettings":
    """The settings of a training; with `watch`, a figure of which more is better decides which weights are kept."""
    from qkv.train.deterministic import fix_workspace
    from qkv.train.settings import TrainSettings

    fix_workspace(run.deterministic)
    settings = TrainSettings(
        steps=run.steps,
        minutes=5.0 if run.steps is None and run.minutes is None else run.minutes,
        precision=run.precision,  # type: ignore[arg-type]  # checked by the settings
        device=run.device,
        parallel=run.parallel,
        recompute=run.recompute,
        record=run.record,
        compile=run.compile,
        deterministic=run.deterministic,
        seed=run.seed,
        evaluate_every=run.evaluate_every,
        save_every=run.evaluate_every if run.save_every is None else run.save_every,
        gradient_norms=run.gradient_norms,
        keep=run.keep,
        keep_every=run.keep_every,
        roll_back=run.roll_back,
        patience=10,
        ema=run.ema,
        average=run.average,
    )
    settings.torch_device()
    return settings if watch is None else replace(settings, watch=watch, better="higher")


def warmup_of(run: RunOptions) -> int:
    if run.warmup is not None:
        return run.warmup
    return WARMUP if run.steps is None else min(WARMUP, run.steps // 10)


def optimizer_of(run: RunOptions, adapt: AdaptOptions, rate: float, **more: Any) -> Callable[..., Any]:
    """The chosen optimizer, with lower rates where layers lie deeper, if asked for."""
    from qkv.train.adapt import LayerwiseRates

    rates = None if adapt.layer_decay is None else LayerwiseRates(adapt.layer_decay)
    return optimizer_in(run, rate, rates=rates, **more)


def schedule_of(run: RunOptions, usual: "Schedule") -> "Schedule":
    """The chosen schedule, or the usual one of the task."""
    return schedule_in(run, usual, warmup_of(run))


def lora_of(adapt: AdaptOptions) -> "LoRA | None":
    from qkv.train.adapt import LoRA

    if adapt.lora is None:
        return None
    if adapt.freeze:
        raise QkvError("--lora leaves all weights as they are, so --freeze does nothing: give one of the two.")
    return LoRA(rank=adapt.lora, alpha=2.0 * adapt.lora)


def adapted(model: "TextModel", adapt: AdaptOptions) -> None:
    """Freeze what is to stay, or put low-rank updates beside the weights."""
    from qkv.train.adapt import add_lora, freeze

    lora = lora_of(adapt)
    if adapt.freeze:
        freeze(model, embeddings=True, layers=adapt.freeze)
    if lora is not None:
        add_lora(model, lora)


def fine_tuning_of(
    run: RunOptions,
    adapt: AdaptOptions,
    watch: str | None,
    reporter: "Reporter",
    distil: "Distillation | None" = None,
) -> "FineTuning":
    from qkv.api.fine_tuning import FineTuning
    from qkv.data.plan import RowCount
    from qkv.train.schedules import Linear

    return FineTuning(
        length=run.length,
        batching=RowCount(run.batch_rows),
        settings=settings_of(run, watch),
        optimizer=optimizer_of(run, adapt, 3e-5 if adapt.lora is None else 3e-4),
        schedule=schedule_of(run, Linear(warmup=warmup_of(run))),
        frozen_layers=adapt.freeze,
        lora=lora_of(adapt),
        distil=distil,
        hold_out=0.0,
        reporter=reporter,
        resume=run.resume,
        overwrite=run.overwrite,
    )


def loaded_reader(model: str, run: RunOptions) -> "TextReader":
    """The model to fine-tune; its new head is random and follows the seed."""
    import torch

    from qkv.api.loading import load
    from qkv.api.runs import check_folder
    from qkv.generate.reader import TextReader

    check_folder(run.out, run.resume, run.overwrite)
    found = load(model, run.device)
    if not isinstance(found, TextReader):
        raise QkvError(f"{model} turns one text into another: this task needs a model such as BERT or GPT.")
    torch.manual_seed(run.seed)
    return found


def divide(
    items: Sequence[Item], share: float, key: Callable[[Item], str], kind: Callable[[Item], str] | None = None
) -> tuple[list[Item], list[Item]]:
    """(to train on, held out); with `kind`, some of every kind."""
    from qkv.api.runs import divided

    return divided(items, share, key, kind) if share else (list(items), [])


def parted(
    known: Item,
    columns: Sequence[str],
    share: float,
    key: Callable[[Any], str],
    kind: Callable[[Any], str] | None = None,
) -> tuple[Item, Item]:
    """(to train on, held out) of a data set whose columns stand beside each other, by one or two of these.

    `key` and `kind` are given a row: what stands in each column, None in those that are not there.
    """
    values = [getattr(known, name) for name in columns]
    rows = list(zip(*(each or [None] * len(values[0]) for each in values), strict=True))
    parts = [
        replace(known, **{  # type: ignore[type-var]
            name: None if whole is None else [row[place] for row in some]
            for place, (name, whole) in enumerate(zip(columns, values, strict=True))
        })
        for some in divide(rows, share, key, kind)
    ]  # fmt: skip
    return parts[0], parts[1]


@contextmanager
def watched(
    run: RunOptions,
    batch: str | None = None,
    smaller: str = "give fewer with --batch-rows, or shorter ones with --length",
) -> Iterator[None]:
    """Ctrl-C, a full device and a search for the rate end as they should; `batch` is what batches are made of."""
    import torch

    from qkv.train.find_rate import RateFound
    from qkv.train.interrupts import Interrupted

    try:
        yield
    except Interrupted as stopped:  # the loop has said where all is saved and how to go on
        raise typer.Exit(stopped.exit_code) from None
    except RateFound as rate:
        tell_rate(rate.search)
    except torch.OutOfMemoryError as error:
        batch = batch or f"{run.batch_rows} rows"
        raise QkvError(f"The device ran out of memory with batches of {batch}: {smaller}.") from error


def report(
    out: Path, examples: Sequence[str], seen: bool, commands: Sequence[str], verdict: Sequence[str] = ()
) -> None:
    """What came of it: the figures and a verdict on them, a few examples, and what to type next."""
    from qkv.api.training import read_result
    from qkv.train.reporter import duration, figure

    result = read_result(out)
    typer.echo(f"Trained {result.step:,} steps in {duration(result.seconds)}; {out} holds the {result.weights}.")
    if result.figures:
        typer.echo("Held out: " + ", ".join(f"{name} {figure(value)}" for name, value in result.figures.items()))
    for line in verdict:
        typer.echo(line)
    if examples:
        typer.echo("Examples it was trained on:" if seen else "Examples it never saw:")
        for example in examples:
            typer.echo(f"  {example}")
    typer.echo("Next:")
    for command in commands:
        typer.echo(f"  {command}")


def quoted(*words: str | Path) -> str:
    """As a shell takes it."""
    from qkv.train.origin import for_shell

    return for_shell(*words)


def short(text: str, most: int = 60) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def beginning(text: str, words: int = 8) -> str:
    """A few words to give to a command."""
    return " ".join(text.split()[:words])


def wanted(said: str, right: str) -> str:
    return said if said == right else f"{said}   (wanted: {right})"
