"""`qkv compare`: variants of a language model side by side."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.groups import with_groups
from qkv.cli.process import TYPED
from qkv.cli.train_corpus import CorpusOptions, read_corpus
from qkv.errors import QkvError, nearest_or_all

if TYPE_CHECKING:
    from qkv.api.variants import Setup, Variant

DENSE = "dense"  # what a person calls the attention of the family itself
BUDGET = re.compile(r"([0-9.]+(?:e[+]?[0-9]+)?) *([a-z]+)", re.IGNORECASE)
UNITS = {  # how a budget is spelled -> the setting, and how many of its unit
    "steps": ("steps", 1.0), "step": ("steps", 1.0), "s": ("minutes", 1 / 60), "sec": ("minutes", 1 / 60),
    "seconds": ("minutes", 1 / 60), "m": ("minutes", 1.0), "min": ("minutes", 1.0), "minutes": ("minutes", 1.0),
    "h": ("minutes", 60.0), "hours": ("minutes", 60.0), "flops": ("flops", 1.0), "flop": ("flops", 1.0),
}  # fmt: skip
EXAMPLES = "200steps, 60s, 5min or 2e15flops"
KEYS = ("attention", "family", "size", "learning-rate", "warmup", "batch-rows", "precision")


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    family: Annotated[str, typer.Option(help="Family of the models; `qkv models` lists them.")] = "gpt2"
    size: Annotated[str | None, typer.Option(help="A named size or changes to the desk size: width=128,layers=2")] = (
        None
    )
    attention: Annotated[
        str | None, typer.Option(help="Of variants that say nothing else, such as window:256; else the family's own.")
    ] = None
    learning_rate: Annotated[float, typer.Option(help="Peak of the learning rate.")] = 1e-3
    warmup: Annotated[
        int | None, typer.Option(min=0, help="Updates over which the rate rises; 50, or a tenth of the steps if less.")
    ] = None
    batch_rows: Annotated[int, typer.Option(min=1, help="Rows of text of a batch.")] = 16
    precision: Annotated[str, typer.Option(help="float32 or bfloat16; auto: bfloat16 on a GPU.")] = "auto"


@with_groups
def compare(
    corpus: CorpusOptions,
    variant: Annotated[
        list[str],
        typer.Option(
            help="dense, another attention (window:256), or a name and what it changes: "
            "'small: size=layers=2 learning-rate=3e-4'. Give it several times; the first is the measure."
        ),
    ],
    common: CommonOptions,
    budget: Annotated[str, typer.Option(help="Of every run: steps, time or operations: " + EXAMPLES + ".")] = "60s",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of every variant.")] = 1,
    length: Annotated[int, typer.Option(min=1, help="Tokens of a row.")] = 256,
    tokenizer: Annotated[
        str, typer.Option(help="For all: a kind, a kind and the most tokens, or a tokenizer.json.")
    ] = "bytes",
    speed_lengths: Annotated[
        str, typer.Option(help="Also time a training step on rows of these lengths: 1024,4096,16384")
    ] = "",
    evaluations: Annotated[int, typer.Option(min=1, help="Of each run, at equal shares of its budget.")] = 10,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps, xpu or auto.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder for all runs, the table and the page.")] = Path("runs/compare"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Train finished runs anew.")] = False,
) -> None:
    """Train variants of a language model within one budget and draw them side by side.

    Every variant reads the same rows of the same texts, and is measured on the same held-out ones: bits per byte
    against time, operations, steps, memory and length of context. page.html says where each wins and loses. Given
    again, the command goes on where it was stopped; variants and seeds may be added. A variant changes any of
    attention, family, size, learning-rate, warmup, batch-rows and precision.

    \b
    Example (after the one that `qkv train lm --help` shows):
      qkv compare --data verses.txt --blank-lines --hold-out 0.3 --size width=32,hidden=64,layers=1 \\
        --variant dense --variant window:8 --variant 'slow: learning-rate=1e-4' \\
        --budget 20steps --length 32 --out runs/compared
    """
    import torch

    from qkv.api.comparing import SETTINGS
    from qkv.api.comparing import compare as run_comparison
    from qkv.api.comparison import table
    from qkv.api.variants import Setup
    from qkv.cli.spellings import tokenizer_of
    from qkv.train.interrupts import Interrupted
    from qkv.train.origin import Origin, started_by
    from qkv.train.reporter import Reporter

    spent = budget_of(budget)
    settings = replace(SETTINGS, **{"minutes": None, **spent}, evaluations=evaluations, device=device)
    settings.torch_device()
    steps = settings.steps
    setup = Setup(
        family=common.family,
        sizes=changes_of_size(common.family, common.size, length),
        attention=common.attention,
        learning_rate=common.learning_rate,
        warmup=common.warmup if common.warmup is not None else 50 if steps is None else min(50, steps // 10),
        batch_rows=common.batch_rows,
        precision=common.precision,
    )
    variants = [variant_of(each, setup, length) for each in variant]
    cutter, lengths = tokenizer_of(tokenizer), lengths_of(speed_lengths)
    texts, valid = read_corpus(corpus, Reporter())
    try:
        with started_by(Origin(command=TYPED.get())):
            comparison = run_comparison(
                texts,
                out,
                variants,
                common=setup,
                settings=settings,
                seeds=seeds,
                valid=valid,
                hold_out=corpus.hold_out,
                tokenizer=cutter,
                length=length,
                speed_lengths=lengths,
                overwrite=overwrite,
            )
    except Interrupted as stopped:  # the loop has said where all is saved and how to go on
        raise typer.Exit(stopped.exit_code) from None
    except torch.OutOfMemoryError as error:
        raise QkvError("The device ran out of memory: give fewer rows (--batch-rows) or shorter ones.") from error
    typer.echo(table(comparison), nl=False)
    typer.echo(f"Written: {out / 'page.html'}, {out / 'table.md'}, {out / 'compare.json'}", err=True)


def budget_of(spelled: str) -> dict[str, Any]:
    """`60s` as the settings of a training have it."""
    found = BUDGET.fullmatch(spelled.strip())
    if found is None or found[2].lower() not in UNITS:
        raise QkvError(f"The budget {spelled!r} should be a number and its unit: {EXAMPLES}.")
    setting, unit = UNITS[found[2].lower()]
    try:
        amount = float(found[1]) * unit
    except ValueError:
        raise QkvError(f"The budget {spelled!r} should be a number and its unit: {EXAMPLES}.") from None
    if setting == "steps":
        if amount != int(amount):
            raise QkvError(f"The budget {spelled!r} should be a whole number of steps.")
        return {setting: int(amount)}
    return {setting: amount}


def variant_of(spelled: str, common: "Setup", length: int) -> "Variant":
    """`dense`, `window:256` or `small: size=layers=2 attention=window:256`."""
    from qkv.api.variants import Variant

    if "=" not in spelled and ": " not in spelled:
        name = spelled.strip()
        return Variant(name, {"attention": attention_of(name)})
    name, colon, changes = spelled.partition(":")
    if not colon or "=" in name:
        raise QkvError(f"The variant {spelled!r} needs a name before what it changes: 'small: {spelled}'.")
    given: dict[str, str] = {}
    for change in changes.split():
        key, equals, value = change.partition("=")
        if not equals or not value:
            raise QkvError(f"The change {change!r} of the variant {name} should be spelled setting=value.")
        if key.replace("_", "-") not in KEYS:
            raise QkvError(f"The variant {name} cannot change {key}: {nearest_or_all(key, KEYS)}")
        if key.replace("_", "-") in given:
            raise QkvError(f"The variant {name} changes {key} twice.")
        given[key.replace("_", "-")] = value
    values: dict[str, Any] = {
        name.replace("-", "_"): number_of(name, value, whole=name != "learning-rate")
        for name, value in given.items()
        if name in ("learning-rate", "warmup", "batch-rows")
    }
    values |= {name: given[name] for name in ("family", "precision") if name in given}
    if "attention" in given:
        values["attention"] = attention_of(given["attention"])
    if "size" in given:
        values["sizes"] = changes_of_size(given.get("family", common.family), given["size"], length)
    return Variant(name.strip(), values)


def attention_of(spelled: str) -> str | None:
    from qkv.models.attention_choice import AttentionChoice

    return None if spelled == DENSE else str(AttentionChoice.parse(spelled))


def changes_of_size(family: str, spelled: str | None, length: int) -> dict[str, Any]:
    """A named size with all of its values, or changes to another size alone."""
    from qkv.cli.spellings import number, sizes_of

    if spelled is None:
        return {}
    if "=" not in spelled.partition(",")[0]:
        values = sizes_of(family, spelled)
        if "positions" in values and "positions=" not in spelled:
            values["positions"] = max(length, values["positions"])
        return values
    sizes_of(family, spelled)  # where its spelling is wrong, that is told in its words
    return {key: number(key, value) for key, _, value in (change.partition("=") for change in spelled.split(","))}


def lengths_of(spelled: str) -> Sequence[int]:
    if not spelled:
        return ()
    return [int(number_of("speed-lengths", each.strip(), whole=True)) for each in spelled.split(",")]


def number_of(name: str, value: str, whole: bool) -> int | float:
    try:
        return int(value) if whole else float(value)
    except ValueError:
        kind = "a whole number" if whole else "a number"
        raise QkvError(f"The setting {name} should be {kind}, but is {value!r}.") from None
