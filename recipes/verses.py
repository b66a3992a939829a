"""The same verse in two translations: does a pair belong together, and which of all verses is it?

    python recipes/verses.py --verses bible.tsv.xz --model runs/bert/pretrained --out runs/verses

VERSES is a table without a header: book, chapter, verse, King James, World English. The model of `recipes/sentiment.py`
learns both from most of the books: to tell a paraphrase from its neighbour in the chapter, and vectors by which a verse
is found among all verses of the books it never saw. With --peer the same search is done by a published sentence model.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal, NamedTuple

import torch
import typer

import qkv
from qkv.api.fine_tuning import FineTuning, fine_tune_classifier, fine_tune_embeddings
from qkv.api.loading import load
from qkv.api.training import read_result
from qkv.data.labelled import LabelledTexts
from qkv.data.plan import RowCount
from qkv.data.table import read_table
from qkv.errors import QkvError
from qkv.files import read_json, write_json
from qkv.generate.readers import SentenceEncoder
from qkv.models.head_choice import HeadChoice
from qkv.train.metrics_of_labels import accuracy
from qkv.train.optimizers import adamw
from qkv.train.schedules import Linear

COLUMNS = ["book", "chapter", "verse", "james", "world", "spanish"]
TESTED = 10  # every tenth book is held out
NAMES = ("other", "same")


class Verse(NamedTuple):
    book: str
    chapter: str
    james: str
    world: str


def read_verses(file: Path) -> tuple[list[Verse], list[Verse]]:
    """(to train on, to test on), whole books each."""
    wanted = ["book", "chapter", "james", "world"]
    table = read_table(str(file), wanted, names=COLUMNS)
    verses = [Verse(*row) for row in zip(*(table.column(name) for name in wanted), strict=True)]
    books = list(dict.fromkeys(verse.book for verse in verses))
    held = set(books[TESTED // 2 :: TESTED])
    return [each for each in verses if each.book not in held], [each for each in verses if each.book in held]


def paraphrases(verses: list[Verse], seed: int) -> LabelledTexts:
    """Each verse with its own translation, and with that of a verse near by, which tells of the same things."""
    chance = Random(seed)
    firsts, seconds, labels = [], [], []
    for place, verse in enumerate(verses):
        near = [other for other in range(max(0, place - 3), min(len(verses), place + 4)) if other != place]
        for other, label in ((place, "same"), (chance.choice(near), "other")):
            firsts.append(verse.james)
            seconds.append(verses[other].world)
            labels.append(label)
    return LabelledTexts(firsts, seconds, labels, NAMES)


def found_first(encoder: SentenceEncoder, verses: list[Verse]) -> float:
    """The share of verses whose own translation is the nearest of all."""
    first = encoder.run([verse.james for verse in verses], batch_tokens=65_536)
    second = encoder.run([verse.world for verse in verses], batch_tokens=65_536)
    nearest = (first @ second.T).argmax(1)
    return float((nearest == torch.arange(len(verses))).float().mean())


def main(
    verses: Annotated[Path, typer.Option(help="table of verses in two translations")],
    model: Annotated[Path, typer.Option(help="folder of a pre-trained encoder")],
    out: Annotated[Path, typer.Option(help="folder for the runs")],
    peer: Annotated[Path | None, typer.Option(help="folder of a published sentence model to compare with")] = None,
    minutes: Annotated[float, typer.Option(help="for each of the two")] = 1.5,
    rate: float = 1e-4,
    length: int = 128,
    precision: Literal["float32", "bfloat16"] = "bfloat16",
    device: str = "auto",
) -> None:
    to_train, to_test = read_verses(verses)
    start = load(model, device)
    how = partial(
        FineTuning,
        length=length,
        optimizer=partial(adamw, learning_rate=rate, betas=(0.9, 0.98)),
        schedule=Linear(warmup=100),
        settings=qkv.TrainSettings(minutes=minutes, precision=precision, device=device, evaluate_every=200, keep=1),
        hold_out=0.02,
    )
    train_pairs, test_pairs = paraphrases(to_train, seed=0), paraphrases(to_test, seed=1)
    classifier = fine_tune_classifier(start, train_pairs, out / "paraphrase", how=how(batching=RowCount(64)))
    said = classifier.run(test_pairs.texts, test_pairs.seconds, batch_tokens=65_536)
    groups = [(verse.james, verse.world) for verse in to_train]
    untrained = SentenceEncoder(
        load(model, device, HeadChoice("embedding", pooling="mean", unit_length=True)).model, start.tokenizer
    )
    before = found_first(untrained, to_test)
    encoder = fine_tune_embeddings(start, groups, out / "embeddings", how=how(batching=RowCount(256)))
    result: dict[str, Any] = {
        "verses": {"train": len(to_train), "test": len(to_test)},
        "paraphrase": {
            **asdict(read_result(out / "paraphrase")),
            "folder": "paraphrase",
            "test_accuracy": accuracy([NAMES.index(found.label) for found in said], test_pairs.numbers()),
        },
        "embeddings": {
            **asdict(read_result(out / "embeddings")),
            "folder": "embeddings",
            "found_first": found_first(encoder, to_test),
            "found_first_before": before,
        },
        "recipe": {"minutes": minutes, "rate": rate, "length": length, "precision": precision},
        "session": read_json(out / "embeddings" / "run.json")["sessions"][-1],
    }
    if peer is not None:
        published = load(peer, device)
        result["peer"] = {"name": peer.name, "found_first": found_first(published, to_test)}
    write_json(out / "result.json", result)
    print((out / "result.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    try:
        typer.run(main)
    except QkvError as error:
        sys.exit(f"qkv: {error}")
