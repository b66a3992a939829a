"""AST in small: which of twelve instruments plays a note whose pitch was never heard while training?

    make corpora
    python recipes/notes.py --corpora corpora --out runs/notes

The pitches are dealt into folds by a checksum of their names, and every note is tested once for each seed by a model
that heard none of its pitch. The same is done by models that begin with the weights of a ViT that learned pictures of
clothes, as AST began with one of photographs, and by logistic regressions. All scores are in `result.json`.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import typer
from notes_data import BANDS, Notes, read_notes, regression

import qkv
from qkv.api.runs import parameters_of
from qkv.api.training import read_result
from qkv.data.augment import InTurn, Noise, Roll, Shift, SpecAugment, WaveMixing
from qkv.data.classes import divided_rows
from qkv.data.image_rows import ImageRows
from qkv.data.image_sets import read_image_set
from qkv.data.plan import RowCount
from qkv.errors import QkvError
from qkv.files import read_json, write_json
from qkv.generate.image_readers import ImageReader
from qkv.train.metrics_of_labels import accuracy, macro_f1
from qkv.train.optimizers import adamw
from qkv.train.schedules import Cosine

PATCH = 16
SIDE = 64  # pixels that pictures are enlarged to: four patches a side
SCRATCH, BEGUN = "from scratch", "begun with pictures"
HELD_OUT = 0.1  # of the notes to train on, to draw a curve; nothing is chosen by it


@dataclass(frozen=True)
class Plan:
    """All that the runs have in common."""

    corpora: Path
    out: Path
    folds: int
    steps: int
    rows: int
    seconds: float
    sizes: dict[str, Any]
    rates: dict[str, float]  # by how a run begins
    precision: Literal["float32", "bfloat16"]
    device: str
    seer: Path | None  # the ViT to begin with


class Job(NamedTuple):
    begins: str
    seed: int
    fold: int

    @property
    def name(self) -> str:
        return f"{self.begins.replace(' ', '-')}-seed{self.seed}-fold{self.fold}"


def main(
    corpora: Annotated[Path, typer.Option(help="folder that `make corpora` filled: notes, and fashion-mnist")],
    out: Annotated[Path, typer.Option(help="folder for all runs")],
    folds: int = 5,
    seeds: int = 3,
    steps: Annotated[int, typer.Option(help="of each run on notes")] = 600,
    rows: Annotated[int, typer.Option(help="notes of a batch")] = 64,
    seconds: Annotated[float, typer.Option(help="that the model hears at once")] = 1.0,
    width: int = 192,
    layers: int = 6,
    learning_rate: float = 1e-3,
    begun_rate: Annotated[float, typer.Option(help="where pictures were learned before")] = 5e-4,
    picture_steps: Annotated[int, typer.Option(help="of the ViT on pictures; 0: all runs from scratch")] = 2000,
    start: Annotated[Path | None, typer.Option(help="ViT to begin with, in place of one trained here")] = None,
    workers: Annotated[int, typer.Option(help="runs side by side")] = 3,
    precision: Literal["float32", "bfloat16"] = "bfloat16",
    device: str = "auto",
) -> None:
    encoder = {"width": width, "hidden": 4 * width, "heads": max(1, width // 64), "layers": layers}
    result: dict[str, Any] = {"model": "ast"}
    if start is None and picture_steps:
        start = out / "pictures"
        result["pictures"] = learn_pictures(corpora, start, encoder, picture_steps, precision, device)
    plan = Plan(
        corpora=corpora,
        out=out,
        folds=folds,
        steps=steps,
        rows=rows,
        seconds=seconds,
        sizes={**encoder, "bands": BANDS, "patch": PATCH},
        rates={SCRATCH: learning_rate, BEGUN: begun_rate},
        precision=precision,
        device=device,
        seer=start,
    )
    begins = [SCRATCH] if start is None else [SCRATCH, BEGUN]
    jobs = [Job(each, seed, fold) for each in begins for seed in range(seeds) for fold in range(folds)]
    learn = partial(learn_notes, plan)
    if workers == 1:
        said = list(map(learn, jobs))
    else:
        with ProcessPoolExecutor(workers, get_context("spawn")) as processes:
            said = list(processes.map(learn, jobs))
    notes = read_notes(corpora, folds)
    heard = {each: of_seeds(seeds, jobs, said, each, notes) for each in begins}
    names = notes.sounds.names
    first = out / jobs[0].name
    session, config = read_json(first / "run.json")["sessions"][-1], read_json(first / "config.json")
    runs = [read_result(out / job.name) for job in jobs]
    write_json(
        out / "result.json",
        {
            **result,
            "sizes": config["sizes"],
            "parameters": parameters_of(qkv.load(first, "cpu").model),
            "device": session["hardware"]["device"],
            "versions": session["versions"],
            "recipe": {
                "folds": f"{folds}, of whole pitches; {seeds} seeds",
                "steps of a run": steps,
                "rows": rows,
                "heard at once": f"{seconds} seconds, from anywhere in a note",
                "precision": precision,
                "optimizer": f"adamw, cosine, rate {learning_rate} from scratch, {begun_rate} after pictures",
                "changes": "masks of 24 bands and 24 frames, noise, moved by 10 frames, half of the waves mixed (α 10)",
                "weights": "of the last step; no run was stopped or chosen by what it scored",
            },
            "classes": names,
            "notes": {"all": len(notes.sounds), "folds": np.bincount(notes.folds).tolist()},
            "notes of a class": np.bincount(notes.sounds.labels, minlength=len(names)).tolist(),
            "steps": sum(run.step for run in runs),
            "tokens": sum(run.tokens for run in runs),
            "flops": sum(run.flops for run in runs),
            "seconds": sum(run.seconds for run in runs),
            "test": {
                "logistic regression, mean of each band": regression(notes, spread=False),
                "logistic regression, mean and deviation of each band": regression(notes, spread=True),
                **{f"AST, {each}": scores for each, scores in heard.items()},
            },
            "curves": {each: mean_curve([out / job.name for job in jobs if job.begins == each]) for each in begins},
        },
    )
    print((out / "result.json").read_text(encoding="utf-8"))


def learn_pictures(
    corpora: Path, folder: Path, encoder: dict[str, Any], steps: int, precision: Any, device: str
) -> dict[str, Any]:
    """A ViT with the patches of the AST learns what pictures of clothes show."""
    how = qkv.ImageTraining(
        augment=Shift(8),
        batching=RowCount(256),
        settings=qkv.TrainSettings(
            steps=steps, evaluate_every=max(1, steps // 4), precision=precision, device=device, keep=1
        ),
        optimizer=partial(adamw, learning_rate=1e-3, weight_decay=0.05),
        schedule=Cosine(warmup=max(1, steps // 10)),
        hold_out=0.02,
    )
    data = enlarged(read_image_set(corpora / "fashion-mnist", "train"))
    use = qkv.train_image_classifier(data, folder, sizes={**encoder, "patch": PATCH}, how=how)
    result = read_result(folder)
    return {**asdict(result), "folder": folder.name, "parameters": parameters_of(use.model)}


def enlarged(rows: ImageRows, at_once: int = 5000) -> ImageRows:
    """Small pictures as large as a few patches."""
    parts = [
        F.interpolate(torch.from_numpy(np.array(rows.pixels[first : first + at_once]))[:, None].float(), (SIDE, SIDE),
                      mode="bilinear")[:, 0]
        for first in range(0, len(rows), at_once)
    ]  # fmt: skip
    pixels = np.concatenate([part.round().to(torch.uint8).numpy() for part in parts])
    return ImageRows(pixels, rows.labels, rows.names)


def learn_notes(plan: Plan, job: Job) -> list[int]:
    """Train on all folds but one; what the model says of each note of that one."""
    torch.set_num_threads(1 if plan.device == "cpu" else 2)
    sounds, folds = read_notes(plan.corpora, plan.folds)
    to_train, valid = divided_rows(sounds.some(np.flatnonzero(folds != job.fold)), HELD_OUT, job.seed)
    how = qkv.SoundTraining(
        augment=InTurn((SpecAugment(bands=24, frames=24), Noise(), Roll())),
        mixing=WaveMixing(),
        batching=RowCount(plan.rows),
        settings=qkv.TrainSettings(
            steps=plan.steps,
            evaluate_every=max(1, plan.steps // 6),
            precision=plan.precision,
            device=plan.device,
            seed=job.seed,
            keep=1,
        ),
        optimizer=partial(adamw, learning_rate=plan.rates[job.begins], weight_decay=0.05),
        schedule=Cosine(warmup=max(1, plan.steps // 10)),
    )
    seer = None
    if job.begins == BEGUN:
        seer = qkv.load(plan.seer or "", "cpu")
        if not isinstance(seer, ImageReader):
            raise QkvError(f"{plan.seer} is no model of pictures to begin with.")
    use = qkv.train_sound_classifier(
        to_train, plan.out / job.name, valid=valid, start=seer, sizes=plan.sizes, seconds=plan.seconds, how=how
    )
    tested = sounds.some(np.flatnonzero(folds == job.fold))
    return [sounds.names.index(found.label) for found in use.run(tested.waves, rows=64)]


def of_seeds(seeds: int, jobs: list[Job], said: list[list[int]], begins: str, notes: Notes) -> dict[str, Any]:
    """Scores of every seed over all notes, each tested by the model that did not hear its pitch; and all confusions."""
    right = notes.sounds.labels.tolist()
    table = np.zeros((len(notes.sounds.names),) * 2, int)
    scores = []
    for seed in range(seeds):
        whole = np.full(len(right), -1)
        for job, answers in zip(jobs, said, strict=True):
            if (job.begins, job.seed) == (begins, seed):
                whole[notes.folds == job.fold] = answers
        assert (whole >= 0).all()
        np.add.at(table, (notes.sounds.labels, whole), 1)
        scores.append((accuracy(whole.tolist(), right), macro_f1(whole.tolist(), right)))
    return {
        "accuracy": [score for score, _ in scores],
        "macro_f1": [score for _, score in scores],
        "said": table.tolist(),  # rows: the instrument; columns: what was said; of all seeds together
    }


def mean_curve(folders: list[Path]) -> list[dict[str, float]]:
    """Validation figures by step, the mean over runs."""
    histories = []
    for folder in folders:
        lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        histories.append([record for record in lines if record["kind"] == "evaluation"])
    return [
        {"step": some[0]["step"], **{name: float(np.mean([each["figures"][name] for each in some]))
                                     for name in ("loss", "accuracy")}}
        for some in zip(*histories, strict=True)
    ]  # fmt: skip


if __name__ == "__main__":
    try:
        typer.run(main)
    except QkvError as error:
        sys.exit(f"qkv: {error}")
