"""English to German: the 2017 Transformer against its recurrent predecessor, on the same data for the same minutes.

    python recipes/translate.py transformer --data DATA --out runs/transformer
    python recipes/translate.py rnn --data DATA --out runs/rnn
    python recipes/translate_report.py runs/transformer runs/rnn

DATA is a folder with train, valid and test as `.tsv` or `.tsv.xz` without a header, English and German first. A run
ends with BLEU and chrF on the test split in `result.json`. A run that was stopped goes on with --resume.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import qkv
from qkv.api.scores import Scores
from qkv.api.training import read_result
from qkv.data.plan import TokenBudget
from qkv.errors import QkvError, nearest_or_all
from qkv.files import read_json, write_json
from qkv.models import rnn, transformer
from qkv.train.metrics import bleu, chrf
from qkv.train.objectives.sequence_to_sequence import SequenceToSequenceLoss
from qkv.train.optimizers import adam, adamw
from qkv.train.schedules import Linear, Noam, Schedule

VOCABULARY = 12_000  # byte-level BPE, shared by both languages
LONGEST = 120  # tokens a side; longer pairs (1 in 400) are left out of training, never of the test
WATCHED = 500  # validation sentences translated while training, for the curve
DECODED = 20_000  # source tokens translated at a time
ADAMW = partial(adamw, learning_rate=1.6e-3, betas=(0.9, 0.98), weight_decay=0.01)
TO_ZERO = Linear(warmup=800)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What differs from model to model: the family, its start, and how it is optimised and averaged."""

    family: str
    sizes: dict[str, Any]
    initialise: Callable[[Any], None] | None = None
    optimizer: partial[Any] = ADAMW
    schedule: Schedule = TO_ZERO
    averaging: dict[str, Any] = field(default_factory=lambda: {"ema": 0.999})


# Sizes as published, with the dropout that so little data asks for.
DROPOUT = {"dropout": 0.3, "attention_dropout": 0.1, "hidden_dropout": 0.1}
BASE = {**asdict(transformer.SIZES["base"]), **DROPOUT}
RECIPES = {
    "transformer": Recipe(family="transformer-prenorm", sizes=BASE),
    "transformer-2017": Recipe(  # wiring, optimiser, schedule and averaging as published [vaswani2017 §5.3, §6.1]
        family="transformer",
        sizes=BASE,
        optimizer=partial(adam, learning_rate=1.0, betas=(0.9, 0.98), epsilon=1e-9),
        schedule=Noam(width=BASE["width"], warmup=4000),
        averaging={"average": 5, "save_every": 300},
    ),
    "rnn": Recipe(
        family="rnn",
        sizes={**asdict(rnn.SIZES["search"]), "dropout": 0.3},
        initialise=rnn.initialise_wide,  # the paper's start begins on a plateau that minutes cannot leave
    ),
}


def read_split(data: Path, split: str) -> list[tuple[str, str]]:
    files = [file for file in (data / f"{split}.tsv", data / f"{split}.tsv.xz") if file.exists()]
    if not files:
        raise QkvError(f"There is no {split}.tsv or {split}.tsv.xz in {data}.")
    return qkv.read_pairs(str(files[0]), "en", "de", names=["en", "de", "source"])


def main(
    model: Annotated[str, typer.Argument(help="transformer, transformer-2017 or rnn")],
    data: Annotated[Path, typer.Option(help="folder with train, valid and test")],
    out: Annotated[Path, typer.Option(help="run folder")],
    minutes: Annotated[float, typer.Option(help="time to train, evaluation not counted")] = 7.0,
    batch_tokens: int = 32_000,
    subword_dropout: float = 0.1,
    precision: Literal["float32", "bfloat16"] = "bfloat16",
    device: str = "auto",
    resume: bool = False,
) -> None:
    if model not in RECIPES:
        raise QkvError(f"There is no recipe for {model}: {nearest_or_all(model, RECIPES)}")
    recipe = RECIPES[model]
    train, valid, test = (read_split(data, split) for split in ("train", "valid", "test"))
    translator = qkv.train_text_to_text(
        train,
        out,
        valid=valid,
        tokenizer=qkv.NewTokenizer("bpe", VOCABULARY),
        family=recipe.family,
        sizes={name: size for name, size in recipe.sizes.items() if not name.endswith("vocabulary")},
        data=qkv.DataSettings(
            batching=TokenBudget(batch_tokens, multiple_of=4), max_length=LONGEST, subword_dropout=subword_dropout
        ),
        settings=qkv.TrainSettings(
            minutes=minutes, precision=precision, device=device, evaluate_every=1000, keep=1, **recipe.averaging
        ),
        objective=SequenceToSequenceLoss(smoothing=0.1),
        optimizer=recipe.optimizer,
        schedule=recipe.schedule,
        initialise=recipe.initialise,
        evaluate=Scores(valid, ["bleu"], limit=WATCHED),
        resume=resume,
    )
    scores = {}
    for name, pairs in {"valid": valid, "test": test}.items():
        english, german = zip(*pairs, strict=True)
        for beams in (1, 5):
            output = [result.text for result in translator.run(english, beams=beams, batch_tokens=DECODED * beams)]
            (out / f"{name}.beam{beams}.txt").write_text("\n".join(output) + "\n", encoding="utf-8")
            overlap = bleu(output, german)
            scores[f"{name}, beam {beams}"] = {
                "BLEU": overlap.value,
                "chrF": chrf(output, german).value,
                "signature": overlap.signature,
            }
    result = read_result(out)
    session = read_json(out / "run.json")["sessions"][-1]
    write_json(
        out / "result.json",
        {
            "model": model,
            "family": recipe.family,
            "sizes": asdict(translator.model.sizes),
            "parameters": sum(parameter.numel() for parameter in translator.model.parameters()),
            "device": session["hardware"]["device"],
            "versions": session["versions"],
            "recipe": {
                "minutes": minutes,
                "batch tokens": batch_tokens,
                "subword dropout": subword_dropout,
                "precision": precision,
                "optimizer": f"{recipe.optimizer.func.__name__} {recipe.optimizer.keywords}",
                "schedule": str(recipe.schedule),
                "averaging": recipe.averaging,
            },
            "minutes": result.seconds / 60,
            "wall_minutes": result.wall_seconds / 60,
            "steps": result.step,
            "target_tokens": result.tokens,
            "flops": result.flops,
            "weights": result.weights,
            "scores": scores,
        },
    )
    print((out / "result.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    try:
        typer.run(main)
    except QkvError as error:
        sys.exit(f"qkv: {error}")
