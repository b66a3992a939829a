"""Another attention in a published language model, and how much of what it costs a little distillation brings back.

    make corpora checkpoints
    python recipes/recover.py --corpora corpora --out runs/recover \
        --model checkpoints/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf

The loss on held-out addresses to the Congress, in rows as long as the model reads: before, after the swap, and after
the swapped model has learned for a few hundred updates what the whole one says of other addresses. In `result.json`.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from torch import nn

import qkv
from qkv.api.language import stream, train_language_model
from qkv.api.runs import validation
from qkv.api.training import read_result
from qkv.data.documents import Documents, read_documents
from qkv.data.packing import LanguageRows
from qkv.data.plan import RowCount
from qkv.data.token_rows import TokenRows
from qkv.errors import QkvError
from qkv.files import read_json, write_json
from qkv.generate.language import TextWriter
from qkv.generate.use import at_rest
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.kernels.fused import fused
from qkv.train.objectives.language import LanguageLoss
from qkv.train.optimizers import adamw
from qkv.train.schedules import Cosine

CHOICES = ("window:256", "window:256+global:4", "performer:256", "rfa:256")
HELD_OUT = 0.06  # share of the addresses


def main(
    corpora: Annotated[Path, typer.Option(help="folder that `make corpora` filled")],
    model: Annotated[str, typer.Option(help="a language model: a folder, or a GGUF file")],
    out: Annotated[Path, typer.Option(help="folder of the runs")],
    attention: Annotated[list[str] | None, typer.Option(help="instead of those of the page; may be repeated")] = None,
    steps: int = 200,
    minutes: Annotated[float | None, typer.Option(help="of each run, where that comes before its steps")] = None,
    rows: int = 8,
    length: Annotated[int, typer.Option(help="tokens of a row to learn from")] = 1024,
    held_rows: Annotated[int, typer.Option(help="rows to measure the loss on, at most")] = 12,
    longest: Annotated[int | None, typer.Option(help="tokens of those; by default as many as the model reads")] = None,
    learning_rate: float = 3e-4,
    precision: Literal["float32", "bfloat16"] = "bfloat16",
    device: str = "auto",
) -> None:
    begun = time.perf_counter()
    texts = addresses(corpora)
    teacher: TextWriter = qkv.load(model, device)
    read = longest or teacher.model.longest or 2048
    held = first_rows(rows_of(teacher, texts["test"], read), held_rows)
    whole = measured(teacher, held, precision)
    print(f"as published: {whole}", flush=True)
    optimizer, schedule = partial(adamw, learning_rate=learning_rate, betas=(0.9, 0.95)), Cosine(warmup=20, floor=0.1)
    distillation = qkv.Distillation(teacher, temperature=1.0, soft=1.0)
    runs: dict[str, Any] = {}
    for spelled in attention or CHOICES:
        torch.manual_seed(0)
        student = qkv.with_attention(teacher, spelled)
        swapped = measured(student, held, precision)
        print(f"{spelled}, swapped: {swapped}", flush=True)
        folder = out / spelled.replace(":", "-")
        learned = train_language_model(
            texts["train"],
            folder,
            hold_out=0.0,
            model=student,
            distil=distillation,
            length=length,
            rows=stream,
            batching=RowCount(rows),
            settings=qkv.TrainSettings(
                steps=steps, minutes=minutes, precision=precision, device=device, log_every=10, keep=1
            ),
            optimizer=optimizer,
            schedule=schedule,
            overwrite=True,
        )
        recovered, result = measured(learned, held, precision), read_result(folder)
        print(f"{spelled}, after distillation: {recovered}", flush=True)
        runs[spelled] = {
            "folder": folder.name,
            "swapped": swapped,
            "recovered": recovered,
            "parameters": sum(parameter.numel() for parameter in learned.model.parameters()),
            "seconds": result.seconds,
            "steps": result.step,
            "tokens": result.tokens,
        }
    session = read_json(out / runs[next(iter(runs))]["folder"] / "run.json")["sessions"][-1]
    write_json(
        out / "result.json",
        {
            "model": Path(model).name,
            "family": teacher.model.family,
            "sizes": asdict(teacher.model.sizes),
            "parameters": sum(parameter.numel() for parameter in teacher.model.parameters()),
            "device": session["hardware"]["device"],
            "versions": session["versions"],
            "recipe": {
                "steps": steps,
                "rows": rows,
                "length": length,
                "precision": precision,
                "optimizer": f"adamw {optimizer.keywords}",
                "schedule": str(schedule),
                "distillation": "predictions of the whole model alone, temperature 1",
            },
            "documents": {part: len(some) for part, some in texts.items()},
            "held": {"rows": len(held.tokens), "length": read, "tokens": int((held.tokens.lengths - 1).sum())},
            "published": whole,
            "runs": runs,
            "seconds": time.perf_counter() - begun,
        },
    )
    print((out / "result.json").read_text(encoding="utf-8"))


def addresses(corpora: Path) -> dict[str, list[str]]:
    """Addresses to the Congress, to learn from and to test on; which is which depends on the text alone."""
    file = corpora / "sotu" / "sotu.jsonl"
    if not file.exists():
        raise QkvError(f"There is no {file}: fetch the texts with `make corpora`.")
    parts: dict[str, list[str]] = {"train": [], "test": []}
    for text in read_documents(file).texts:
        held = hashlib.sha256(text.encode()).digest()[0] / 256 < HELD_OUT
        parts["test" if held else "train"].append(text)
    return parts


def rows_of(writer: TextWriter, texts: list[str], length: int) -> LanguageRows:
    tokenizer = writer.tokenizer
    start = tokenizer.start if tokenizer.has("start") else None
    return stream(Documents.from_texts(texts, tokenizer), length, end=tokenizer.end, start=start)


def first_rows(rows: LanguageRows, most: int) -> LanguageRows:
    """The first rows, all of them full."""
    full = min(most, int((rows.tokens.lengths == rows.tokens.lengths.max()).sum()))
    tokens, documents = (
        TokenRows(part.ids[: part.offsets[full]], part.offsets[: full + 1], part.pad)
        for part in (rows.tokens, rows.documents)
    )
    return LanguageRows(tokens, documents, rows.bytes[:full])


def measured(writer: TextWriter, held: LanguageRows, precision: str) -> dict[str, float]:
    """Perplexity and bits per byte of held-out rows, by plain dense attention: no time goes into compiling."""
    measure = validation(writer, LanguageLoss(), held, None)
    assert measure is not None
    kind = next(writer.model.parameters()).device.type
    narrow = torch.autocast(kind, torch.bfloat16, enabled=precision == "bfloat16")
    with at_rest(writer.model), dense(writer.model), narrow:
        return dict(measure(writer.model))


@contextmanager
def dense(model: nn.Module) -> Iterator[None]:
    """Attentions that choose a kernel for themselves take the fused one."""
    free = [each for each in model.modules() if isinstance(each, Attention) and each.kernel is None]
    for each in free:
        each.kernel = fused
    try:
        yield
    finally:
        for each in free:
            each.kernel = None


if __name__ == "__main__":
    try:
        typer.run(main)
    except QkvError as error:
        sys.exit(f"qkv: {error}")
