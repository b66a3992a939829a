"""What `qkv train lm` chose by the texts, the budget and the machine, in lines that name the options which choose
otherwise."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.train_chosen import counted, told_learning
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

PACKED = "lzma_bits_per_byte"  # a figure of the held-out texts
NEW_RATE = 1e-3  # of AdamW
TUNED_ROWS, TUNED_LENGTH, TUNED_RATE = 16, 256, 1e-4  # of a model that is trained further
LETTERS = ("bytes", "characters")  # kinds of tokenizer whose tokens are about a byte


@dataclass(frozen=True, kw_only=True)
class LanguageRunOptions(RunOptions):
    # What suits a new model is chosen where nothing is said.
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
class HowLearned:
    """A language model and how it learns."""

    tokenizer: "Tokenizer | None"  # None: that of texts which are cut already
    run: RunOptions  # with what was chosen where nothing was said
    settings: "TrainSettings"
    rows: int
    length: int
    rate: float  # that suits AdamW
    schedule: "Schedule"
    family: str = "gpt2"
    sizes: "Sizes" = "desk"
    more: Mapping[str, Any] = field(default_factory=dict)  # of the optimizer
    chosen: Mapping[str, Any] | None = None
    told: Sequence[str] = ()


def for_a_known_one(tokenizer: "Tokenizer | None", run: RunOptions, settings: "TrainSettings") -> HowLearned:
    """A model that is trained further."""
    from qkv.train.schedules import Cosine

    rows, length = run.batch_rows or TUNED_ROWS, run.length or TUNED_LENGTH
    run = replace(run, optimizer=run.optimizer or "adamw", batch_rows=rows)
    schedule = schedule_of(run, Cosine(warmup=warmup_of(run), floor=0.1))
    return HowLearned(tokenizer, run, settings, rows, length, TUNED_RATE, schedule)


def for_a_new_one(
    family: str | None,
    size: str | None,
    tokenizer: "Tokenizer | None",
    run: RunOptions,
    settings: "TrainSettings",
    texts: "Texts",
    *,
    plain: bool,
) -> HowLearned:
    """What was asked for, and what suits the texts, the budget and the machine where nothing was.

    `plain`: of the family whose parts everything else of the command knows. So is one with sizes of that alone.
    """
    from qkv.api.choices import NewTokenizer
    from qkv.api.streamed_texts import StreamedTexts
    from qkv.api.text_choice import BYTES_A_TOKEN, FAMILY, PLAIN_FAMILY, Asked, choose_text_model, rate_for
    from qkv.train.schedules import TriStage

    there = tokenizer or (texts.tokenizer if isinstance(texts, StreamedTexts) else None)
    pieces = None if there is None else there.vocabulary if isinstance(there, NewTokenizer) else there.size
    letters = isinstance(there, NewTokenizer) and there.kind in LETTERS
    asked = Asked(
        family=family or (PLAIN_FAMILY if plain or not has_sizes(FAMILY, size or "") else None),
        pieces=pieces,
        bytes_a_token=1.0 if letters else BYTES_A_TOKEN,
        rows=run.batch_rows,
        length=run.length,
    )
    text_bytes = size_of_texts(texts)
    choice = choose_text_model(text_bytes, settings, asked, run.out if run.resume else None)
    sizes = choice.sizes if size is None else sizes_in(choice.family, size, choice.length, suits(choice, size))
    if choice.capped:
        settings = replace(settings, steps=choice.updates)
    run = replace(run, optimizer=run.optimizer or "muon", batch_rows=choice.rows)
    rate = rate_for(sizes["width"]) if run.optimizer == "muon" else NEW_RATE
    schedule = schedule_of(run, TriStage(rise=choice.rise, hold=choice.hold))
    cut = "the tokenizer that was asked for" if there is not None else f"{choice.pieces:,} byte-pair pieces"
    return HowLearned(
        tokenizer=tokenizer if there is not None else NewTokenizer("bpe", choice.pieces),
        run=run,
        settings=settings,
        rows=choice.rows,
        length=choice.length,
        rate=rate,
        schedule=schedule,
        family=choice.family,
        sizes=sizes,
        more={"beside": choice.beside} if run.optimizer == "muon" else {},
        chosen=choice.record(),
        told=(
            told_model(choice.family, sizes, cut),
            told_reading(choice, text_bytes),
            told_learning(run, f"{choice.rows} rows", rate, schedule, settings),
        ),
    )


def size_of_texts(texts: "Texts") -> int:
    from qkv.api.streamed_texts import StreamedTexts

    return texts.size if isinstance(texts, StreamedTexts) else sum(len(text.encode()) for text in texts.to_train)


def has_sizes(family: str, spelled: str) -> bool:
    """Whether a family has all sizes that are to be changed."""
    from qkv.models.catalogue import find_family

    known = {field.name for field in fields(find_family(family).sizes_type)}
    return all(name in known for name, equals, _ in (part.partition("=") for part in spelled.split(",")) if equals)


def suits(choice: "TextChoice", spelled: str) -> Mapping[str, Any]:
    """The size that was chosen; where another width or number of heads is asked for, in its proportions."""
    from qkv.api.text_choice import HIDDEN, proportions

    asked = dict(part.partition("=")[::2] for part in spelled.split(","))
    numbers = {name: int(asked[name]) for name in ("width", "heads") if asked.get(name, "").isdecimal()}
    if choice.family not in HIDDEN or not all(numbers.values()):
        return choice.sizes
    return {**choice.sizes, **proportions(choice.family, **{"width": choice.sizes["width"], **numbers})}


def sizes_in(family: str, spelled: str, length: int, suits: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The size that was asked for, or changes of the one that `suits`, by default of the desk size.

    A model reads as long texts as it is trained on, or as a published size reads.
    """
    from qkv.cli.spellings import sizes_of

    values = sizes_of(family, spelled, base=suits)
    if "positions" in values and "positions=" not in spelled:
        small = spelled.startswith("desk") or "=" in spelled.partition(",")[0]
        values["positions"] = length if small else max(length, values["positions"])
    return values


def packed_beside(texts: "Texts") -> Callable[[Any], Mapping[str, float]] | None:
    """What `lzma` makes of the held-out texts once it was shown the others; None where these stay on disk."""
    from qkv.api.language_data import TextsInMemory
    from qkv.api.text_choice import packed_bits_per_byte

    if not isinstance(texts, TextsInMemory) or not texts.to_validate:
        return None
    score = cache(lambda: packed_bits_per_byte(texts.to_train, texts.to_validate))
    return lambda _: {PACKED: score()}


def told_model(family: str, sizes: Mapping[str, Any], tokenizer: str) -> str:
    drops = f", dropout {sizes['dropout']:g}" if sizes.get("dropout") else ""
    return (
        f"Model: a new {family}, {counted(sizes['layers'], 'layer')} of width {sizes['width']}{drops}; {tokenizer} "
        "(--family, --size, --tokenizer)."
    )


def told_reading(choice: "TextChoice", text_bytes: int) -> str:
    """How much of the texts a training gets to see."""
    times = f"{choice.readings:.2g} times" if choice.readings < 1.95 else f"{choice.readings:,.0f} times"
    ends = ", which is enough: it ends then" if choice.capped else ""
    return (
        f"Reading: {_amount(text_bytes)} of text in rows of {choice.length} tokens; about "
        f"{counted(choice.updates, 'update')} read it {times}{ends} (--length, --minutes, --steps)."
    )


def told_verdict(figures: Mapping[str, float | None]) -> list[str]:
    """Whether a model learned more of the language than a packer that is shown the same text."""
    found, packed = figures.get("bits_per_byte"), figures.get(PACKED)
    if found is None or packed is None:
        return []
    if found < packed:
        return [
            f"The model needs {found:.3f} bits for a byte of the held-out text; lzma, shown the rest, {packed:.3f}."
        ]
    return [
        f"The model has learned less than lzma, which needs {packed:.3f} bits for a byte of the held-out text where it "
        f"needs {found:.3f}: train it longer (--minutes), or give it more text."
    ]


def _amount(size: int) -> str:
    from qkv.api.texts_on_disk import amount

    return amount(size)
