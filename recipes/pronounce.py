"""Teach a small Transformer to pronounce English, in about three minutes on two CPU cores.

    python recipes/pronounce.py

Letters in, phonemes out, from the CMU pronouncing dictionary that comes with qkv. The run ends with the error rates on
words that were held out, with the pronunciation of words that are in no dictionary, and with a page that shows where
the model looked: letters against phonemes.
"""

from __future__ import annotations

import sys
from functools import partial
from os.path import relpath
from pathlib import Path
from typing import Annotated

import typer

import qkv
from qkv.api.scores import Scores
from qkv.data.plan import TokenBudget
from qkv.data.pronunciation import pronunciation_splits
from qkv.errors import QkvError
from qkv.train.optimizers import adamw
from qkv.train.schedules import Linear

HELD_OUT = ["although", "knowingly", "physicist", "exceptional"]  # real words that are not trained on, for the page
INVENTED = ["transformerly", "blenthorpe", "quizzicate", "sphonk"]  # in no dictionary
EXAMPLES = 6  # held-out words printed with their references


def main(
    out: Annotated[Path, typer.Option(help="folder for the model, its history and the page")] = Path("runs/pronounce"),
    minutes: Annotated[float, typer.Option(help="time to train")] = 2.25,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto")] = "cpu",
) -> None:
    splits = pronunciation_splits()
    seen = {word for word, _ in splits.train + splits.valid}
    assert not seen.intersection(HELD_OUT + INVENTED), "the page must show words that were never seen"
    model = qkv.train_text_to_text(
        splits.train,
        out,
        valid=splits.valid,
        tokenizer=qkv.NewTokenizer("characters"),
        target_tokenizer=qkv.NewTokenizer("symbols"),
        sizes={"width": 128, "hidden": 512, "encoder_layers": 3, "decoder_layers": 2, "dropout": 0.0},
        data=qkv.DataSettings(batching=TokenBudget(1536)),
        settings=qkv.TrainSettings(
            minutes=minutes, device=device, evaluate_every=500, log_every=50, watch="per", keep=1
        ),
        optimizer=partial(adamw, learning_rate=2e-3, betas=(0.9, 0.98)),
        schedule=Linear(warmup=100),
        evaluate=Scores(splits.valid, ["per"], limit=200),
        overwrite=True,
    )
    test = Scores(splits.test, ["per", "ser"], limit=None)
    outputs = [result.text for result in model.run(test.sources, beams=1)]
    figures = test.of(outputs)
    print(
        f"\nOn {len(test.sources):,} held-out words it never saw: phoneme error rate {figures['per']:.1%}, "
        f"word error rate {figures['ser']:.1%}.\n"
    )
    for word, said, right in list(zip(test.sources, outputs, test.references, strict=True))[:EXAMPLES]:
        verdict = "right" if said in right else f"the dictionary says {right[0]}"
        print(f"  {word:<16}{said:<36}{verdict}")
    print("\nWords that are in no dictionary:")
    for word, result in zip(INVENTED, model.run(INVENTED), strict=True):
        print(f"  {word:<16}{result.text}")
    page = out / "attention.html"
    qkv.look_at(model, HELD_OUT + INVENTED, html=page)
    print(f"\nWhere it looks, letters against phonemes: open {page.resolve()}")
    command = relpath(Path(sys.executable).with_name("qkv"))
    print(f"Go on with:  {command} run {out} yourword   or   {command} look {out} yourword --html page.html")


if __name__ == "__main__":
    try:
        typer.run(main)
    except QkvError as error:
        sys.exit(f"qkv: {error}")
