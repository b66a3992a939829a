"""Experts in small: how many updates do they save, where every token costs the same? [fedus2022 §3]

    make corpora
    python recipes/switch.py --corpora corpora --out runs/switch

A GPT and GPTs with more and more experts, each expert as large as the feed-forward of the first, learn to go on with
the same texts, in the same order and for the same number of updates. What each said of held-out texts on its way is in
the `metrics.jsonl` of its run, and what they were in `result.json`. Runs that are done are kept.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer
from fetched_texts import documents

import qkv
from qkv.api.language import train_language_model
from qkv.api.training import read_result
from qkv.data.plan import RowCount
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.files import read_json, write_json
from qkv.models.catalogue import count_parameters, find_family
from qkv.models.head_choice import HeadChoice
from qkv.train.optimizers import adamw
from qkv.train.schedules import Cosine

VOCABULARY = 8000
EVALUATIONS = 20
WARMUP = 200


@dataclass(frozen=True)
class Plan:
    """All that the runs have in common."""

    corpora: Path
    out: Path
    steps: int
    rows: int
    length: int
    sizes: dict[str, Any]
    rate: float
    precision: Literal["float32", "bfloat16"]
    device: str

    @property
    def tokenizer(self) -> Path:
        return self.out / "tokenizer.json"


class Job(NamedTuple):
    experts: int  # 0: one feed-forward
    seed: int

    @property
    def name(self) -> str:
        return f"{f'experts-{self.experts}' if self.experts else 'dense'}-seed{self.seed}"


def main(
    corpora: Annotated[Path, typer.Option(help="folder that `make corpora` filled")],
    out: Annotated[Path, typer.Option(help="folder for all runs")],
    experts: Annotated[str, typer.Option(help="how many, for each model that has them")] = "8,32",
    seeds: Annotated[int, typer.Option(help="of each model")] = 2,
    steps: Annotated[int, typer.Option(help="of each run")] = 2000,
    rows: Annotated[int, typer.Option(help="of a batch")] = 64,
    length: Annotated[int, typer.Option(help="tokens of a row")] = 256,
    width: Annotated[int, typer.Option(help="of all models")] = 256,
    layers: Annotated[int, typer.Option(help="of all models")] = 6,
    learning_rate: Annotated[float, typer.Option(help="the highest")] = 1e-3,
    workers: Annotated[int, typer.Option(help="runs side by side")] = 3,
    precision: Annotated[Literal["float32", "bfloat16"], typer.Option(help="of the products")] = "bfloat16",
    device: Annotated[str, typer.Option(help="cuda, cpu or auto")] = "auto",
) -> None:
    none = {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}
    sizes = {"width": width, "hidden": 4 * width, "heads": max(1, width // 64), "layers": layers, **none}
    plan = Plan(corpora, out, steps, rows, length, sizes, learning_rate, precision, device)
    texts = documents(corpora)
    out.mkdir(parents=True, exist_ok=True)
    if not plan.tokenizer.exists():
        qkv.NewTokenizer("bpe", VOCABULARY).train(texts["train"]).save(plan.tokenizer)
    choices = [0, *(int(each) for each in experts.split(","))]
    jobs = [Job(each, seed) for seed in range(seeds) for each in reversed(choices)]  # the slowest first
    to_do = [job for job in jobs if not finished(plan, job)]
    if workers == 1:
        for job in to_do:
            learn(plan, job)
    else:
        with ProcessPoolExecutor(workers, get_context("spawn")) as processes:
            list(processes.map(partial(learn, plan), to_do))
    session = read_json(out / jobs[0].name / "run.json")["sessions"][-1]
    write_json(
        out / "result.json",
        {
            "model": "switch",
            "device": session["hardware"]["device"],
            "versions": session["versions"],
            "documents": {part: len(some) for part, some in texts.items()},
            "sizes": sizes,
            "seeds": seeds,
            "runs": [told(plan, job) for job in sorted(jobs)],
            "recipe": {
                "updates of a run": steps,
                "rows of a batch": rows,
                "tokens of a row": f"{length}, of {VOCABULARY} kinds",
                "experts": "in every other block, as many tokens for each as come",
                "optimizer": f"adamw, betas 0.9 and 0.95, rate {learning_rate}, decay 0.1",
                "schedule": f"warm-up of {WARMUP} updates, then a cosine to a tenth",
                "dropout": 0.0,
                "precision": precision,
            },
        },
    )
    print((out / "result.json").read_text(encoding="utf-8"))


def finished(plan: Plan, job: Job) -> bool:
    folder = plan.out / job.name
    return (folder / "run.json").exists() and read_result(folder).step == plan.steps


def learn(plan: Plan, job: Job) -> None:
    """One run; all of a seed begin with the same order of texts."""
    texts = documents(plan.corpora)
    train_language_model(
        texts["train"],
        plan.out / job.name,
        valid=texts["valid"],
        tokenizer=TextTokenizer.load(plan.tokenizer),
        sizes={**plan.sizes, **({"experts": job.experts} if job.experts else {})},
        length=plan.length,
        batching=RowCount(plan.rows),
        settings=qkv.TrainSettings(
            steps=plan.steps,
            evaluate_every=max(1, plan.steps // EVALUATIONS),
            precision=plan.precision,
            device=plan.device,
            seed=job.seed,
            keep=1,
        ),
        optimizer=partial(adamw, learning_rate=plan.rate, betas=(0.9, 0.95), weight_decay=0.1),
        schedule=Cosine(warmup=WARMUP, floor=0.1),
    )


def told(plan: Plan, job: Job) -> dict[str, Any]:
    folder = plan.out / job.name
    result, config = read_result(folder), read_json(folder / "config.json")
    sizes = find_family(config["family"]).sizes(config["sizes"])
    return {
        "experts": job.experts,
        "seed": job.seed,
        "folder": job.name,
        "parameters": count_parameters(config["family"], sizes, HeadChoice("language")),
        "steps": result.step,
        "tokens": result.tokens,
        "flops": result.flops,
        "seconds": result.seconds,
    }


if __name__ == "__main__":
    try:
        typer.run(main)
    except QkvError as error:
        sys.exit(f"qkv: {error}")
