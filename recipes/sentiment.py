"""BERT in small: pre-trained on its two questions about real text, then fine-tuned to tell good reviews from bad.

    make corpora
    python recipes/sentiment.py --corpora corpora --out runs/bert

The same fine-tuning from random weights stands beside it: what is pre-training worth? A student of half the layers then
learns from the fine-tuned model. All scores are in `result.json`.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from fetched_texts import documents, reviews

import qkv
from qkv.api.encoders import pretrain_encoder
from qkv.api.fine_tuning import FineTuning, fine_tune_classifier
from qkv.api.training import read_result
from qkv.data.labelled import LabelledTexts
from qkv.data.plan import RowCount, TokenBudget
from qkv.errors import QkvError
from qkv.files import read_json, write_json
from qkv.generate.readers import Classifier, MaskFiller
from qkv.models.catalogue import build
from qkv.train.metrics_of_labels import accuracy, macro_f1
from qkv.train.optimizers import adamw
from qkv.train.schedules import Linear

VOCABULARY = 16_000
NAMES = ("negative", "positive")


def main(
    corpora: Annotated[Path, typer.Option(help="folder that `make corpora` filled")],
    out: Annotated[Path, typer.Option(help="folder for the three runs")],
    minutes: Annotated[float, typer.Option(help="of pre-training")] = 4.0,
    fine_tuning_minutes: float = 0.7,
    width: int = 384,
    layers: int = 8,
    length: int = 256,
    rows: int = 128,
    learning_rate: float = 6e-4,
    fine_tuning_rate: float = 1e-4,
    precision: Literal["float32", "bfloat16"] = "bfloat16",
    device: str = "auto",
    scratch: Annotated[bool, typer.Option(help="also fine-tune from random weights")] = True,
) -> None:
    texts, labelled = documents(corpora), reviews(corpora)
    sizes: dict[str, Any] = {"width": width, "hidden": 4 * width, "heads": width // 64, "layers": layers}
    common = {"precision": precision, "device": device, "keep": 1}
    optimizer = partial(adamw, learning_rate=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    filler = pretrain_encoder(
        texts["train"],
        out / "pretrained",
        valid=texts["valid"],
        tokenizer=qkv.NewTokenizer("wordpiece", VOCABULARY, lowercase=True),
        sizes={**sizes, "positions": 512},
        length=length,
        batching=RowCount(rows),
        settings=qkv.TrainSettings(minutes=minutes, evaluate_every=500, **common),
        optimizer=optimizer,
        schedule=Linear(warmup=300),
    )
    data = {
        part: LabelledTexts([text for text, _ in some], None, [label for _, label in some], NAMES)
        for part, some in labelled.items()
    }
    starts = {"pre-trained": filler}
    if scratch:
        torch.manual_seed(1)
        new = build(filler.model.family, filler.model.sizes, filler.model.head_choice)
        starts["from scratch"] = MaskFiller(new, filler.tokenizer)
    tuned = {}
    for name, start in starts.items():
        folder = out / name.replace(" ", "-")
        how = FineTuning(
            length=512,
            batching=TokenBudget(16_384, multiple_of=32),
            settings=qkv.TrainSettings(minutes=fine_tuning_minutes, evaluate_every=200, **common),
            optimizer=partial(adamw, learning_rate=fine_tuning_rate, betas=(0.9, 0.98)),
            schedule=Linear(warmup=100),
        )
        classifier = fine_tune_classifier(start, data["train"], folder, valid=data["valid"], how=how)
        tuned[name] = report(classifier, folder, data)
        if name == "pre-trained":
            teacher = classifier
    folder = out / "student"
    start = qkv.student_of(teacher, layers // 2)  # every other layer of the teacher [sanh2019 §3]
    how = replace(how, distil=qkv.Distillation(teacher, temperature=2.0, soft=0.5))
    student = fine_tune_classifier(start, data["train"], folder, valid=data["valid"], how=how)
    tuned["student"] = report(student, folder, data)
    result, session = read_result(out / "pretrained"), read_json(out / "pretrained" / "run.json")["sessions"][-1]
    write_json(
        out / "result.json",
        {
            "model": "bert",
            "sizes": asdict(filler.model.sizes),
            "parameters": sum(parameter.numel() for parameter in filler.model.parameters()),
            "device": session["hardware"]["device"],
            "versions": session["versions"],
            "recipe": {
                "minutes": minutes,
                "rows": rows,
                "length": length,
                "precision": precision,
                "optimizer": f"adamw {optimizer.keywords}",
                "fine-tuning": f"{fine_tuning_minutes} minutes, rate {fine_tuning_rate}, texts cut to 512 tokens",
            },
            "documents": {part: len(some) for part, some in texts.items()},
            "reviews": {part: len(some) for part, some in labelled.items()},
            "pretraining": {**asdict(result), "folder": result.folder.name},
            "fine-tuned": tuned,
        },
    )
    print((out / "result.json").read_text(encoding="utf-8"))


def report(classifier: Classifier, folder: Path, data: dict[str, LabelledTexts]) -> dict[str, Any]:
    """What came of a fine-tuning, its scores on the test reviews, and how many of them it reads in a second."""
    classifier.run(data["test"].texts[:256])  # kernels are chosen before the clock runs
    start = time.perf_counter()
    said = [NAMES.index(found.label) for found in classifier.run(data["test"].texts, batch_tokens=65_536)]
    seconds = time.perf_counter() - start
    right = data["test"].numbers()
    return {
        **asdict(read_result(folder)),
        "folder": folder.name,
        "parameters": sum(parameter.numel() for parameter in classifier.model.parameters()),
        "test": {"accuracy": accuracy(said, right), "macro_f1": macro_f1(said, right)},
        "texts_per_second": len(said) / seconds,
    }


if __name__ == "__main__":
    try:
        typer.run(main)
    except QkvError as error:
        sys.exit(f"qkv: {error}")
