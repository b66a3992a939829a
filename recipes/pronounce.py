"""Teach a small Transformer to pronounce English: a minute or two on two CPU cores, longer where others use them too.

    python recipes/pronounce.py

Letters in, phonemes out, from the CMU pronouncing dictionary that comes with qkv. A model that learned the same for
longer comes with qkv too and answers at once; this run trains its own from nothing. It says on its first updates how
long that takes here, and ends with its error rates on words that were held out, beside those of a mere table of
letters, with the pronunciation of words that are in no dictionary, and with a page that shows where the model looked:
letters against phonemes.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from os.path import relpath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import qkv
from qkv.cli.process import share_cores
from qkv.data.plan import TokenBudget
from qkv.data.pronunciation import pronunciation_splits
from qkv.errors import QkvError
from qkv.train.reporter import Reporter, duration
from qkv.train.schedules import Linear

if TYPE_CHECKING:
    from qkv.generate.text import TextToText

PACKAGED = "pronounce"  # the model that comes with qkv, by `python -m tools.package_pronounce`
UPDATES = 1200
BESIDE = 150  # updates that take as long as all that comes beside them: scores on the way and at the end, the page
MEASURED = 5.0  # seconds of updates to measure before the time is told
OFF = 1.3  # by how much a time that was told may be off before another is told
HELD_OUT = ["although", "knowingly", "physicist", "exceptional"]  # real words that are not trained on, for the page
INVENTED = ["transformerly", "blenthorpe", "quizzicate", "sphonk"]  # in no dictionary
EXAMPLES = 6  # held-out words printed with their references


class Announcing(Reporter):
    """Tells how long all of it takes as soon as enough updates were measured, and again where the pace changes."""

    def __init__(self, updates: int) -> None:
        super().__init__()
        self.updates, self.began = updates, time.monotonic()
        self.told: list[float] = []  # seconds, from the beginning to the page
        self._first: float | None = None  # seconds of the first record's updates, which are slow

    def train(self, record: Mapping[str, Any], progress: float) -> None:
        super().train(record, progress)
        if self._first is None:
            self._first = record["seconds"]
        elif self.left and record["seconds"] - self._first >= MEASURED:
            an_update = self.left / (self.updates * (1 - progress))
            total = time.monotonic() - self.began + self.left + BESIDE * an_update
            if not self.told:
                self.say(f"Measured on {record['step']} updates: all of it takes about {duration(total)}.")
            elif not self.told[-1] / OFF <= total <= self.told[-1] * OFF:
                self.say(f"The pace has changed with what else runs here: all of it takes about {duration(total)}.")
            else:
                return
            self.told.append(total)

    def taken(self) -> str:
        """How long it took, beside what was told."""
        told = [f"about {duration(seconds)}" for seconds in self.told]
        first = f"; {told[0]} were announced" if told else ""
        return f"{duration(time.monotonic() - self.began)}{first}{f', then {told[-1]}' if len(told) > 1 else ''}"


def main(
    out: Annotated[Path, typer.Option(help="folder for the model, its history and the page")] = Path("runs/pronounce"),
    updates: Annotated[int, typer.Option(min=1, help="how often the weights change")] = UPDATES,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto")] = "cpu",
) -> None:
    share_cores()  # before torch is imported
    command = relpath(Path(sys.executable).with_name("qkv"))
    print("The model that is packaged with qkv answers at once:")
    show(HELD_OUT + INVENTED, qkv.load(PACKAGED, "cpu").run(HELD_OUT + INVENTED))
    print(f"While the next one trains, ask it for others:  {command} run {PACKAGED} yourword\n")
    print(
        f"Now a model of your own learns it from nothing, in {updates:,} updates. "
        "How long that takes here is told after the first of them.",
        flush=True,
    )
    reporter = Announcing(updates)
    model = learn(out, updates, device, reporter)
    test = qkv.Scores(pronunciation_splits().test, ["per", "ser"], limit=None)
    outputs = [result.text for result in model.run(test.sources, beams=1)]
    figures = test.of(outputs)
    print(
        f"\nThe model of this run, on {len(test.sources):,} held-out words it never saw: "
        f"phoneme error rate {figures['per']:.1%}, word error rate {figures['ser']:.1%}.\n"
        f"{test.verdict(figures, {'a table of letters': by_letter(test.sources)})[1]}\n"
    )
    for word, said, right in list(zip(test.sources, outputs, test.references, strict=True))[:EXAMPLES]:
        print(f"  {word:<16}{said:<36}{'right' if said in right else f'the dictionary says {right[0]}'}")
    print("\nIts pronunciation of words that are in no dictionary:")
    show(INVENTED, model.run(INVENTED))
    page = out / "attention.html"
    qkv.look_at(model, HELD_OUT + INVENTED, html=page)
    print(f"\nWhere it looks, letters against phonemes: open {page.resolve()}")
    print(f"Go on with:  {command} run {out} yourword   or   {command} look {out} yourword --html page.html")
    print(f"All of it took {reporter.taken()}.")


def learn(out: Path, updates: int, device: str, reporter: Reporter | None = None) -> TextToText:
    """A model that is trained from nothing on the words that are not held out."""
    from qkv.train.objectives.sequence_to_sequence import SequenceToSequenceLoss  # torch comes with it
    from qkv.train.optimizers import muon

    splits = pronunciation_splits()
    seen = {word for word, _ in splits.train + splits.valid}
    assert not seen.intersection(HELD_OUT + INVENTED), "the page must show words that were never seen"
    return qkv.train_text_to_text(
        splits.train,
        out,
        valid=splits.valid,
        tokenizer=qkv.NewTokenizer("characters"),
        target_tokenizer=qkv.NewTokenizer("symbols"),
        sizes={"width": 96, "hidden": 384, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0},
        data=qkv.DataSettings(batching=TokenBudget(1024)),
        settings=qkv.TrainSettings(steps=updates, device=device, evaluations=3, log_every=20, keep=1),
        objective=SequenceToSequenceLoss(smoothing=0.0),
        optimizer=partial(muon, learning_rate=1.5e-2),
        schedule=Linear(warmup=20),
        evaluate=qkv.Scores(splits.valid, ["per"], limit=200),
        reporter=reporter,
        overwrite=True,
    )


def by_letter(words: Sequence[str]) -> list[str]:
    """What needs no model: for each letter the phoneme that it most often is, in words with as many of the one as of
    the other."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for word, spoken in pronunciation_splits().train:
        phonemes = spoken.split()
        if len(phonemes) == len(word):
            for letter, phoneme in zip(word, phonemes, strict=True):
                found[letter][phoneme] += 1
    table = {letter: counted.most_common(1)[0][0] for letter, counted in found.items()}
    return [" ".join(table[letter] for letter in word if letter in table) for word in words]


def show(words: Sequence[str], results: Sequence[Any]) -> None:
    for word, result in zip(words, results, strict=True):
        print(f"  {word:<16}{result.text}")


if __name__ == "__main__":
    try:
        typer.run(main)
    except QkvError as error:
        sys.exit(f"qkv: {error}")
