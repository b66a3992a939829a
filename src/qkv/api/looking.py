"""Attention of texts as pages and images, in one call."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qkv.errors import QkvError
from qkv.generate.reader import TextReader
from qkv.generate.text import TextToText
from qkv.look.draw import draw_record, write_png
from qkv.look.maps import AttentionRecord
from qkv.look.page import write_page
from qkv.look.record import record_attention, record_reading, record_text


def look_at(
    model: TextToText | TextReader,
    texts: Sequence[str],
    *,
    targets: Sequence[str] | None = None,
    html: Path | str | None = None,
    png: Path | str | None = None,
) -> list[AttentionRecord]:
    """What the model looks at while it reads each text and writes its answer, or the target given for it.

    A model with one stack only reads; a target is then the second text of a pair.

    `html` names one page for all texts; `png` names an image, numbered where there are several texts. A record shows
    itself in a notebook.
    """
    if isinstance(texts, str):
        raise QkvError("look_at wants a list of texts: put the one text into brackets.")
    if not isinstance(model, TextToText | TextReader):
        raise QkvError(f"look_at draws the attention of models of text, and a {type(model).__name__} is none.")
    if not texts:
        raise QkvError("There is no text to look at: give at least one.")
    if targets is not None and len(targets) != len(texts):
        raise QkvError(
            f"There are {len(texts)} texts and {len(targets)} targets: each text needs one, or none has any."
        )
    if blank := [text for text in texts if not text.strip()]:
        raise QkvError(f"There is nothing to look at in {blank[0]!r}: give texts that are not blank.")
    images = checked_files(html, png, len(texts))
    records = _records(model, texts, targets)
    if html is not None:
        write_page(records, Path(html))
    if images:
        for record, image in zip(records, images, strict=True):
            write_png(draw_record(record), image)
    return records


def _records(
    model: TextToText | TextReader, texts: Sequence[str], targets: Sequence[str] | None
) -> list[AttentionRecord]:
    if isinstance(model, TextReader):
        seconds = [None] * len(texts) if targets is None else targets
        pairs = zip(texts, seconds, strict=True)
        return [record_reading(model.model, text, model.tokenizer, second) for text, second in pairs]
    source, target = model.readers
    if targets is None:
        return [record_text(model.model, text, source, target) for text in texts]
    records = []
    for text, wanted in zip(texts, targets, strict=True):
        read = [*source.encode([text])[0], source.end]
        written = [*target.encode([wanted])[0], target.end]
        record = record_attention(model.model, read, written, source, target)
        records.append(replace(record, source=text, target=wanted))
    return records


def checked_files(html: Path | str | None, png: Path | str | None, count: int) -> list[Path]:
    """The images to write, one for each input; names that cannot be are told before anyone waits."""
    images = [] if png is None else numbered(Path(png), count)
    if png is not None and Path(png).suffix.lower() != ".png":
        raise QkvError(f"An image is written as PNG: name it {Path(png).with_suffix('.png')}, not {png}.")
    if html is not None and Path(html).resolve() in [image.resolve() for image in images]:
        raise QkvError(f"The page and the image cannot both be {html}: name two files.")
    return images


def numbered(file: Path, count: int) -> list[Path]:
    """The file itself for one image; `name-1.png`, `name-2.png`, … for several."""
    if count == 1:
        return [file]
    return [file.with_name(f"{file.stem}-{number}{file.suffix}") for number in range(1, count + 1)]
