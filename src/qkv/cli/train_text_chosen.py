"""The recipe of `qkv train lm`: what a person chose, what suits the text, the budget and the machine, and the lines
that say so and name the options for another choice."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.train_chosen import counted, learning_line
from qkv.cli.train_options import RunOptions, schedule_of, warmup_of

if TYPE_CHECKING:
    from qkv.api.choices import NewTokenizer, Sizes
    from qkv.api.language_data import TextsInMemory
    from qkv.api.streamed_texts import StreamedTexts
    from qkv.api.text_choice import TextChoice
    from qkv.data.tokenizer import TextTokenizer
    from qkv.train.schedules import Schedule
    from qkv.train.settings import TrainSettings

    Texts = TextsInMemory | StreamedTexts
    Tokenizer = NewTokenizer | TextTokenizer

LZMA = "lzma_bits_per_byte"  # beside bits_per_byte, among the figures of the held-out texts
ADAMW_RATE = 1e-3  # of a new model
TUNED_ROWS, TUNED_LENGTH, TUNED_RATE = 16, 256, 1e-4  # of a model that is trained further
ONE_BYTE = ("bytes", "characters")  # tokenizers with about one byte a token


@dataclass(frozen=True, kw_only=True)
class LanguageRunOptions(RunOptions):
    # None: chosen by the text, the budget and the machine.
    optimizer: Annotated[
        str | None, typer.Option(help="adamw, adamw8bit, muon, lion or adafactor; muon, or adamw with --model.")
    ] = None  # type: ignore[assignment]
    batch_rows: Annotated[
        int | None, typer.Option(min=1, help="Rows of text of a batch; 16, or 32 of a new model on a GPU.")
    ] = None  # type: ignore[assignment]
    warmup: Annotated[
        int | None,
        typer.Option(help="Updates over which the rate rises; with --model 50, or a tenth of --steps if that is less."),
    ] = None


@dataclass(frozen=True)
class LanguageRecipe:
    """A language model and how it is trained."""

    tokenizer: "Tokenizer | None"  # None: that of texts which are tokenised already
    run: RunOptions  # complete
    settings: "TrainSettings"
    rows: int
    length: int
    rate: float  # for AdamW; other optimizers take their share of it
    schedule: "Schedule"
    family: str = "gpt2"
    sizes: "Sizes" = "desk"
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    chosen: Mapping[str, Any] | None = None  # for the record of the run
    messages: Sequence[str] = ()


def tuning_recipe(tokenizer: "Tokenizer | None", run: RunOptions, settings: "TrainSettings") -> LanguageRecipe:
    """For a model that is trained further."""
    from qkv.train.schedules import Cosine

    rows, length = run.batch_rows or TUNED_ROWS, run.length or TUNED_LENGTH
    run = replace(run, optimizer=run.optimizer or "adamw", batch_rows=rows)
    schedule = schedule_of(run, Cosine(warmup=warmup_of(run), floor=0.1))
    return LanguageRecipe(tokenizer, run, settings, rows, length, TUNED_RATE, schedule)


def new_recipe(
    family: str | None,
    size: str | None,
    tokenizer: "Tokenizer | None",
    run: RunOptions,
    settings: "TrainSettings",
    texts: "Texts",
    *,
    plain: bool,
) -> LanguageRecipe:
    """For a new model: what was given, and what suits the text, the budget and the machine.

    `plain`: take the family that every other option goes with; so do sizes that no other family has.
    """
    from qkv.api.choices import NewTokenizer
    from qkv.api.streamed_texts import StreamedTexts
    from qkv.api.text_choice import FAMILY, PLAIN_FAMILY, Given, choose_text_model, muon_rate
    from qkv.train.schedules import TriStage

    if isinstance(texts, StreamedTexts):  # meant to be more than is read
        own, text_bytes = tokenizer or texts.tokenizer, None
    else:
        own, text_bytes = tokenizer, sum(len(text.encode()) for text in texts.to_train)
    vocabulary = None if own is None else own.vocabulary if isinstance(own, NewTokenizer) else own.size
    given = Given(
        family=family or (PLAIN_FAMILY if plain or not has_sizes(FAMILY, size or "") else None),
        vocabulary=vocabulary,
        bytes_per_token=1.0 if isinstance(own, NewTokenizer) and own.kind in ONE_BYTE else None,
        rows=run.batch_rows,
        length=run.length,
    )
    choice = choose_text_model(text_bytes, settings, given, run.out if run.resume else None)
    sizes = choice.sizes if size is None else sizes_in(choice.family, size, choice.length, rescaled(choice, size))
    if choice.capped:
        settings = replace(settings, steps=choice.updates)
    run = replace(run, optimizer=run.optimizer or "muon", batch_rows=choice.rows)
    by_muon = run.optimizer == "muon"
    rate = muon_rate(sizes["width"]) if by_muon else ADAMW_RATE
    schedule = schedule_of(run, TriStage(rise=choice.warm_up, hold=choice.hold))
    return LanguageRecipe(
        tokenizer=tokenizer if own is not None else NewTokenizer("bpe", choice.vocabulary),
        run=run,
        settings=settings,
        rows=choice.rows,
        length=choice.length,
        rate=rate,
        schedule=schedule,
        family=choice.family,
        sizes=sizes,
        optimizer_options={"adamw_factor": choice.adamw_factor} if by_muon else {},
        chosen=choice.record(),
        messages=(
            model_line(choice, sizes, own is None),
            data_line(choice, text_bytes),
            learning_line(run, f"{choice.rows} rows", rate, schedule, settings),
        ),
    )


def has_sizes(family: str, spelled: str) -> bool:
    """Whether a family has all the sizes that are to be changed."""
    from qkv.models.catalogue import find_family

    known = {field.name for field in fields(find_family(family).sizes_type)}
    return all(name in known for name, equals, _ in (part.partition("=") for part in spelled.split(",")) if equals)


def rescaled(choice: "TextChoice", spelled: str) -> Mapping[str, Any]:
    """The chosen sizes, in the proportions of another width or number of heads where one is given."""
    from qkv.api.text_choice import HIDDEN, proportions

    given = dict(part.partition("=")[::2] for part in spelled.split(","))
    numbers = {name: int(given[name]) for name in ("width", "heads") if given.get(name, "").isdecimal()}
    if choice.family not in HIDDEN or not all(numbers.values()):
        return choice.sizes
    return {**choice.sizes, **proportions(choice.family, **{"width": choice.sizes["width"], **numbers})}


def sizes_in(family: str, spelled: str, length: int, base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A size by name, or changes to `base`, by default the desk size.

    A model reads rows as long as it is trained on; one of a published size, as long as published.
    """
    from qkv.cli.spellings import sizes_of

    values = sizes_of(family, spelled, base=base)
    if "positions" in values and "positions=" not in spelled:
        small = spelled.startswith("desk") or "=" in spelled.partition(",")[0]
        values["positions"] = length if small else max(length, values["positions"])
    return values


def with_lzma(texts: "Texts") -> Callable[[Any], Mapping[str, float]] | None:
    """An evaluation that adds what lzma needs for the held-out texts; None for texts on disk."""
    from qkv.api.language_data import TextsInMemory
    from qkv.api.text_choice import lzma_bits_per_byte

    if not isinstance(texts, TextsInMemory) or not texts.to_validate:
        return None
    score = cache(lambda: lzma_bits_per_byte(texts.to_train, texts.to_validate))
    return lambda _: {LZMA: score()}


def model_line(choice: "TextChoice", sizes: Mapping[str, Any], new_tokenizer: bool) -> str:
    dropout = f", dropout {sizes['dropout']:g}" if sizes.get("dropout") else ""
    vocabulary = f"a byte-pair vocabulary of {choice.vocabulary:,}" if new_tokenizer else "the given tokenizer"
    layers = f"{counted(sizes['layers'], 'layer')} of width {sizes['width']}"
    return f"Model: a new {choice.family}, {layers}{dropout}; {vocabulary} (--family, --size, --tokenizer)."


def data_line(choice: "TextChoice", text_bytes: int | None) -> str:
    from qkv.api.texts_on_disk import amount

    text = "Texts on disk" if text_bytes is None else amount(text_bytes)
    epochs = "" if choice.epochs is None else f", {choice.epochs:.2g} epochs"
    ends = ", after which more would not help" if choice.capped else ""
    return (
        f"Data: {text} in rows of {choice.length} tokens; about {counted(choice.updates, 'update')}{epochs}{ends} "
        "(--length, --minutes, --steps)."
    )


def verdict(figures: Mapping[str, float | None]) -> list[str]:
    """Whether the model beats a compressor that was given the same text."""
    model, compressor = figures.get("bits_per_byte"), figures.get(LZMA)
    if model is None or compressor is None:
        return []
    needs = f"{model:.3f} bits for each byte of the held-out text; lzma, given the same text, needs {compressor:.3f}"
    if model < compressor:
        return [f"The model needs {needs}."]
    return [f"The model needs {needs}, so it learned little: train longer (--minutes) or give more text."]
