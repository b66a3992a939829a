"""`qkv train rate`: a loaded model learns a number for a text, or for two."""

from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.groups import with_groups
from qkv.cli.train_attention import AttentionOptions, swapped
from qkv.cli.train_options import (
    EXAMPLES_SHOWN,
    AdaptOptions,
    DataOptions,
    RunOptions,
    beginning,
    fine_tuning_of,
    loaded_reader,
    parted,
    quoted,
    report,
    short,
    watched,
)
from qkv.cli.train_tasks import needs_held

if TYPE_CHECKING:
    from qkv.data.labelled import RatedTexts
    from qkv.train.reporter import Reporter


@with_groups
def rate(
    model: Annotated[str, typer.Option(help="Model to fine-tune: a folder, or owner/name[@revision] on the hub.")],
    data: DataOptions,
    run: RunOptions,
    adapt: AdaptOptions,
    attention: AttentionOptions,
    text: Annotated[str, typer.Option(help="Column with the texts.")] = "text",
    second: Annotated[str | None, typer.Option(help="Column with second texts, where pairs have a number.")] = None,
    value: Annotated[str, typer.Option(help="Column with the numbers.")] = "value",
    metric: Annotated[
        list[str] | None, typer.Option(help="spearman or pearson; the first one given decides which weights are kept.")
    ] = None,
) -> None:
    """Fine-tune a model to give a number to a text, such as stars, or to two, such as how alike they are.

    \b
    Example (after the one that `qkv train mlm --help` shows):
      printf 'text\\tvalue\\nthe light\\t1\\nlight\\t0.9\\nthe deep\\t-1\\ndarkness\\t-0.9\\n' > numbers.tsv
      qkv train rate --model runs/bert --data numbers.tsv --learning-rate 0.01 \\
        --steps 40 --hold-out 0 --out runs/numbers
      qkv run runs/numbers 'the light' 'the darkness'
    """
    from qkv.api.figures import SIMILARITY_METRICS, RatingFigures, check_metrics
    from qkv.api.rating import fine_tune_rater
    from qkv.train.reporter import Reporter

    reporter = Reporter()
    metrics = check_metrics(metric or [], list(SIMILARITY_METRICS))
    how = fine_tuning_of(run, adapt, metrics[0] if metrics else None, reporter)
    known, held = read_numbers(data, text, second, value, reporter)
    needs_held(metrics, held.texts)
    measured = metrics or (["spearman"] if len(held.texts) > 1 else [])
    reader = swapped(loaded_reader(model, run), attention)
    with watched(run):
        rater = fine_tune_rater(
            reader,
            known,
            run.out,
            valid=held,
            how=how,
            evaluate=RatingFigures(held, measured) if measured else None,
            name=value,
        )
    shown = held if held.texts else known
    seconds = None if shown.seconds is None else shown.seconds[:EXAMPLES_SHOWN]
    said = rater.run(shown.texts[:EXAMPLES_SHOWN], seconds)
    beside = [""] * len(said) if seconds is None else [f" | {short(each)}" for each in seconds]
    examples = [
        f"{short(text)}{other} → {found:.3f}   (wanted: {right:g})"
        for text, other, found, right in zip(shown.texts, beside, said, shown.values, strict=False)
    ]
    pair = "" if seconds is None else f" --second {quoted(beginning(seconds[0]))}"
    report(run.out, examples, not held.texts, [f"qkv run {quoted(run.out, beginning(shown.texts[0]))}{pair}"])


def read_numbers(
    data: DataOptions, text: str, second: str | None, value: str, reporter: "Reporter"
) -> tuple["RatedTexts", "RatedTexts"]:
    """(to train on, held out)"""
    from qkv.api.pairs import report_problems
    from qkv.cli.spellings import names_of
    from qkv.data.labelled import read_rated

    def read(path: str, format: str | None) -> "RatedTexts":
        found = read_rated(path, text=text, second=second, value=value, names=names_of(data.names), format=format)
        report_problems(found.problems, reporter.say)
        return found

    known = read(data.data, data.format)
    if data.valid is not None:
        return known, read(data.valid, None)
    return parted(known, ("texts", "seconds", "values"), data.hold_out, key=lambda row: row[0])
