"""`qkv train`: a model of one's own from a table of one's own."""

import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.train_images import images
from qkv.cli.train_spans import answer, embed
from qkv.cli.train_tasks import classify, pairs, sentiment, tag
from qkv.cli.train_text import lm, mlm
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.api.pairs import Pair
    from qkv.generate.text import TextToText

train = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
train.command("lm", short_help="Learn to go on with texts.")(lm)
train.command("mlm", short_help="Learn what hidden words were, as BERT did.")(mlm)
train.command("classify", short_help="Learn the label of a text.")(classify)
train.command("sentiment", short_help="Learn to tell good reviews from bad ones.")(sentiment)
train.command("pairs", short_help="Learn how two texts stand to each other.")(pairs)
train.command("tag", short_help="Learn the tag of every word.")(tag)
train.command("answer", short_help="Learn where the answer to a question stands.")(answer)
train.command("embed", short_help="Learn vectors that are alike where texts are.")(embed)
train.command("images", short_help="Learn what pictures show.")(images)

EXAMPLES_SHOWN = 5
DECODED = 200  # held-out sources that are decoded for metrics at each evaluation

Data = Annotated[
    str, typer.Option(help="TSV, CSV, JSONL or parquet: a file, a folder of files, or - for standard input.")
]
Out = Annotated[Path, typer.Option(help="Folder for the model and the history of its training.")]


@train.callback()
def every_task() -> None:
    """Train a model on your own data: one command for each kind of task.

    \b
    Example:
      printf 'word\\tphonemes\\ncat\\tK AE T\\ndog\\tD AO G\\n' > few.tsv
      qkv train text-to-text --data few.tsv --source word --target phonemes \\
        --size width=32,layers=1 --steps 20 --out runs/few
    """


@train.command("text-to-text", short_help="Learn to turn one text into another.")
def text_to_text(
    data: Data,
    source: Annotated[str, typer.Option(help="Column with the texts that go in.")],
    target: Annotated[str, typer.Option(help="Column with the texts that should come out.")],
    out: Out,
    names: Annotated[str, typer.Option(help="Columns of a file without a header line: word,phonemes")] = "",
    format: Annotated[str | None, typer.Option(help="tsv, csv, jsonl or parquet, where no file name tells.")] = None,
    valid: Annotated[str | None, typer.Option(help="Table to validate on, with the same columns.")] = None,
    hold_out: Annotated[
        float, typer.Option(help="Share of the sources to validate on without --valid; 0: none.")
    ] = 0.02,
    family: Annotated[str, typer.Option(help="Family of models; `qkv models` lists them.")] = "transformer-prenorm",
    size: Annotated[
        str,
        typer.Option(help="A named size, changes to the desk size, or both: base | width=128,layers=2 | base,heads=4"),
    ] = "desk",
    tokenizer: Annotated[
        str, typer.Option(help="For both sides: a kind, a kind and the most tokens, or a tokenizer.json.")
    ] = "bpe:8000",
    source_tokenizer: Annotated[
        str | None, typer.Option(help="For the source alone: characters | bpe:4000 | …")
    ] = None,
    target_tokenizer: Annotated[str | None, typer.Option(help="For the target alone: symbols | word:5000 | …")] = None,
    steps: Annotated[int | None, typer.Option(help="Train for so many updates.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Train for so long; 5 where --steps is not given either.")
    ] = None,
    batch_tokens: Annotated[int, typer.Option(help="Most tokens of a batch, padding counted.")] = 2048,
    max_length: Annotated[int, typer.Option(help="Pairs with more tokens on a side are left out of training.")] = 256,
    learning_rate: Annotated[float, typer.Option(help="Peak of the learning rate.")] = 1e-3,
    warmup: Annotated[int, typer.Option(help="Updates over which the learning rate rises to its peak.")] = 100,
    dropout: Annotated[float | None, typer.Option(help="Dropout of the model, where not the size's own.")] = None,
    subword_dropout: Annotated[float, typer.Option(help="Share of BPE merges left out, anew each epoch.")] = 0.0,
    label_smoothing: Annotated[float, typer.Option(help="Share of each target spread over the vocabulary.")] = 0.1,
    precision: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of weights, batches and dropout.")] = 0,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="bleu, chrf, rouge1, rouge2, rougeL, wer, cer, per or ser; may be repeated, the first one decides."
        ),
    ] = None,
    evaluate_every: Annotated[int, typer.Option(help="Steps between evaluations, each with a checkpoint.")] = 200,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin anew where the folder holds a run.")] = False,
) -> None:
    """Train a model that turns the texts of one column into those of another.

    It validates as it goes, keeps the best weights, can be stopped with Ctrl-C and resumed, and leaves a folder that
    `qkv run` and `qkv look` open. Bad rows are reported with their line and left out.

    \b
    Tokenizers: word, symbols (whatever stands between spaces), characters,
    bpe, wordpiece, unigram, bytes.

    \b
    Example:
      printf 'word\\tphonemes\\ncat\\tK AE T\\ndog\\tD AO G\\nact\\tAE K T\\ngod\\tG AA D\\n' > words.tsv
      qkv train text-to-text --data words.tsv --source word --target phonemes \\
        --source-tokenizer characters --target-tokenizer symbols \\
        --size width=32,hidden=64,layers=1 --steps 100 --hold-out 0.25 --out runs/words
    """
    from functools import partial

    import torch

    from qkv.api.choices import DataSettings
    from qkv.api.pairs import hold_out as divide
    from qkv.api.pairs import read_pairs
    from qkv.api.scores import Scores, find_metric
    from qkv.api.training import train_text_to_text
    from qkv.cli.spellings import names_of, sizes_of, tokenizers_of
    from qkv.data.plan import TokenBudget
    from qkv.train.interrupts import Interrupted
    from qkv.train.objectives.sequence_to_sequence import SequenceToSequenceLoss
    from qkv.train.optimizers import adamw
    from qkv.train.reporter import Reporter
    from qkv.train.schedules import Cosine
    from qkv.train.settings import TrainSettings

    settings = TrainSettings(
        steps=steps,
        minutes=5.0 if steps is None and minutes is None else minutes,
        precision=precision,  # type: ignore[arg-type]  # checked by the settings
        device=device,
        seed=seed,
        evaluate_every=evaluate_every,
        save_every=evaluate_every,
        keep=1,
        patience=10,
    )
    if metric:
        settings = replace(settings, watch=metric[0], better=find_metric(metric[0]).better)
    settings.torch_device()
    if not 0 < learning_rate < math.inf:
        raise QkvError(f"The learning rate must be above 0 and finite, but is {learning_rate}.")
    tokenizers = tokenizers_of(tokenizer, source_tokenizer, target_tokenizer)
    sizes = sizes_of(family, size, dropout)
    reporter = Reporter()
    read = partial(read_pairs, source=source, target=target, names=names_of(names), say=reporter.say)
    pairs = read(data, format=format)
    held: list[Pair] = []
    if valid is not None:
        held = read(valid)
    elif hold_out:
        pairs, held = divide(pairs, hold_out)
    if metric and not held:
        raise QkvError("A metric needs data to be measured on: give --valid, or --hold-out above 0.")
    scores = Scores(held, metric or ["cer"], limit=DECODED) if held else None
    try:
        trained = train_text_to_text(
            pairs,
            out,
            valid=held,
            tokenizer=tokenizers[0],
            target_tokenizer=tokenizers[1],
            family=family,
            sizes=sizes,
            data=DataSettings(
                batching=TokenBudget(batch_tokens), max_length=max_length, subword_dropout=subword_dropout, hold_out=0.0
            ),
            settings=settings,
            objective=SequenceToSequenceLoss(smoothing=label_smoothing),
            optimizer=partial(adamw, learning_rate=learning_rate, betas=(0.9, 0.98)),
            schedule=Cosine(warmup=warmup, floor=0.02),
            evaluate=scores,
            reporter=reporter,
            resume=resume,
            overwrite=overwrite,
        )
    except Interrupted as stopped:  # the loop has said where all is saved and how to go on
        raise typer.Exit(stopped.exit_code) from None
    except torch.OutOfMemoryError as error:
        raise QkvError(
            f"The device ran out of memory with batches of {batch_tokens} tokens: give fewer with --batch-tokens, "
            "or a smaller --size."
        ) from error
    report(trained, out, pairs, held)


def report(trained: "TextToText", out: Path, pairs: list["Pair"], held: list["Pair"]) -> None:
    """What came of it: the figures, a few examples, and what to type next."""
    from qkv.api.training import read_result
    from qkv.train.reporter import duration, figure

    result = read_result(out)
    typer.echo(f"Trained {result.step:,} steps in {duration(result.seconds)}; {out} holds the {result.weights}.")
    if result.figures:
        typer.echo("Held out: " + ", ".join(f"{name} {figure(value)}" for name, value in result.figures.items()))
    references: dict[str, list[str]] = {}
    for source, target in held or pairs:
        references.setdefault(source, []).append(target)
    sources = list(references)[:EXAMPLES_SHOWN]
    typer.echo("Examples it never saw:" if held else "Examples it was trained on:")
    for source, output in zip(sources, trained.run(sources), strict=True):
        right = output.text in references[source]
        typer.echo(f"  {source} → {output.text}" + ("" if right else f"   (wanted: {references[source][0]})"))
    typer.echo("Next:")
    typer.echo(f"  qkv run {shlex.quote(str(out))} {shlex.quote(sources[0])}")
    typer.echo(f"  qkv look {shlex.quote(str(out))} {shlex.quote(sources[0])} --html look.html")
