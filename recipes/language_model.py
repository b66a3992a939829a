"""A GPT pre-trained on real text: reviews, newspaper articles, addresses to the Congress, novels.

    make corpora
    python recipes/language_model.py --corpora corpora --out runs/gpt

It ends with bits per byte on documents it never saw, and a few continuations, in `result.json`.
"""

from __future__ import annotations

import bz2
import lzma
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from fetched_texts import documents

import qkv
from qkv.api.language import train_language_model
from qkv.api.runs import validation
from qkv.api.training import read_result
from qkv.data.documents import Documents
from qkv.data.packing import pack
from qkv.data.plan import RowCount
from qkv.errors import QkvError
from qkv.files import read_json, write_json
from qkv.generate.language import Options
from qkv.generate.shape import TopP
from qkv.generate.strategy import Sampling
from qkv.generate.use import at_rest
from qkv.train.objectives.language import LanguageLoss
from qkv.train.optimizers import adamw
from qkv.train.schedules import Cosine

VOCABULARY = 16_000
PROMPTS = ("This film is", "The President said that", "It is a truth", "The company said its net profit")


def main(
    corpora: Annotated[Path, typer.Option(help="folder that `make corpora` filled")],
    out: Annotated[Path, typer.Option(help="run folder")],
    minutes: float = 4.0,
    width: int = 512,
    layers: int = 8,
    length: int = 512,
    rows: int = 64,
    learning_rate: float = 1e-3,
    dropout: float = 0.1,
    precision: Literal["float32", "bfloat16"] = "bfloat16",
    device: str = "auto",
    resume: bool = False,
) -> None:
    texts = documents(corpora)
    optimizer = partial(adamw, learning_rate=learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    sizes: dict[str, Any] = {"width": width, "hidden": 4 * width, "heads": width // 64, "layers": layers}
    sizes |= {"dropout": dropout, "embedding_dropout": dropout, "attention_dropout": 0.0}
    schedule = Cosine(warmup=200, floor=0.05)
    writer = train_language_model(
        texts["train"],
        out,
        valid=texts["valid"],
        tokenizer=qkv.NewTokenizer("bpe", VOCABULARY),
        sizes=sizes,
        length=length,
        batching=RowCount(rows),
        settings=qkv.TrainSettings(
            minutes=minutes, precision=precision, device=device, evaluate_every=250, keep=1, ema=0.998
        ),
        optimizer=optimizer,
        schedule=schedule,
        resume=resume,
    )
    tokenizer = writer.tokenizer
    held = pack(Documents.from_texts(texts["test"], tokenizer), length, end=tokenizer.end, start=tokenizer.start)
    measure = validation(writer, LanguageLoss(), held, None)
    assert measure is not None
    with at_rest(writer.model):
        scores = measure(writer.model)
    whole = "\n".join(texts["test"]).encode()
    packers = {"bzip2": bz2.compress(whole, 9), "xz": lzma.compress(whole, preset=9)}
    how = Options(strategy=Sampling(seed=1), shapers=(TopP(0.9),), most=60)
    written = [result.text for result in writer.run(PROMPTS, how)]
    result, session = read_result(out), read_json(out / "run.json")["sessions"][-1]
    write_json(
        out / "result.json",
        {
            "model": "gpt",
            "sizes": asdict(writer.model.sizes),
            "parameters": sum(parameter.numel() for parameter in writer.model.parameters()),
            "device": session["hardware"]["device"],
            "versions": session["versions"],
            "recipe": {
                "minutes": minutes,
                "rows": rows,
                "length": length,
                "precision": precision,
                "optimizer": f"adamw {optimizer.keywords}",
                "schedule": str(schedule),
            },
            "documents": {part: len(some) for part, some in texts.items()},
            "minutes": result.seconds / 60,
            "steps": result.step,
            "tokens": result.tokens,
            "flops": result.flops,
            "weights": result.weights,
            "test": scores,
            "compressed": {name: 8 * len(packed) / len(whole) for name, packed in packers.items()},
            "continuations": dict(zip(PROMPTS, written, strict=True)),
        },
    )
    print((out / "result.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    try:
        typer.run(main)
    except QkvError as error:
        sys.exit(f"qkv: {error}")
