"""Switch Transformer in small: how many updates do experts save, where every token costs the same?

    make corpora
    python recipes/switch.py --corpora corpora --out runs/switch

A T5 and Switch Transformers with more and more experts, each expert as large as the feed-forward of the T5, learn to
fill gaps in the same texts, in the same order and for the same number of updates. What each said of held-out texts on
its way is in the `metrics.jsonl` of its run, and what they were in `result.json`.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer
from fetched_texts import documents

import qkv
from qkv.api.runs import parameters_of
from qkv.api.span_filling import pretrain_text_to_text
from qkv.api.training import read_result
from qkv.data.plan import RowCount
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.files import read_json, write_json
from qkv.train.optimizers import adamw
from qkv.train.schedules import InverseSquareRoot

VOCABULARY = 8000
EVALUATIONS = 20
WARMUP = 200
CAPACITY_FACTOR = 2.0  # the largest of [fedus2022 tab.1]: here it counts in each text, where words come in clusters


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
    experts: Annotated[str, typer.Option(help="how many, for each Switch Transformer")] = "8,32",
    seeds: int = 2,
    steps: Annotated[int, typer.Option(help="of each run")] = 2000,
    rows: Annotated[int, typer.Option(help="texts of a batch")] = 64,
    length: Annotated[int, typer.Option(help="tokens of a text")] = 256,
    width: int = 256,
    layers: Annotated[int, typer.Option(help="of the encoder, and of the decoder")] = 4,
    learning_rate: float = 1e-3,
    workers: Annotated[int, typer.Option(help="runs side by side")] = 3,
    precision: Literal["float32", "bfloat16"] = "bfloat16",
    device: str = "auto",
) -> None:
    sizes = {
        "width": width, "key_width": 64, "hidden": 4 * width, "heads": max(1, width // 64),
        "encoder_layers": layers, "decoder_layers": layers, "dropout": 0.0,
    }  # fmt: skip
    plan = Plan(corpora, out, steps, rows, length, sizes, learning_rate, precision, device)
    texts = documents(corpora)
    out.mkdir(parents=True, exist_ok=True)
    qkv.NewTokenizer("bpe", VOCABULARY).train(texts["train"]).save(plan.tokenizer)
    choices = [0, *(int(each) for each in experts.split(","))]
    jobs = [Job(each, seed) for seed in range(seeds) for each in reversed(choices)]  # the slowest first
    if workers == 1:
        runs = list(map(partial(learn, plan), jobs))
    else:
        with ProcessPoolExecutor(workers, get_context("spawn")) as processes:
            runs = list(processes.map(partial(learn, plan), jobs))
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
            "runs": sorted(runs, key=lambda run: (run["experts"], run["seed"])),
            "recipe": {
                "updates of a run": steps,
                "texts of a batch": rows,
                "tokens of a text": f"at most {length}, of {VOCABULARY} kinds",
                "cut out": "15% of the tokens, in stretches of 3 on average",
                "experts": f"in every other block, of {CAPACITY_FACTOR} times an even share of each text",
                "optimizer": f"adamw, rate {learning_rate}, warm-up of {WARMUP} updates, then the inverse square root",
                "dropout": 0.0,
                "precision": precision,
            },
        },
    )
    print((out / "result.json").read_text(encoding="utf-8"))


def learn(plan: Plan, job: Job) -> dict[str, Any]:
    """One run; all of a seed begin with the same order of texts and the same gaps."""
    texts = documents(plan.corpora)
    with_experts = {"experts": job.experts, "capacity_factor": CAPACITY_FACTOR} if job.experts else {}
    model = pretrain_text_to_text(
        texts["train"],
        plan.out / job.name,
        valid=texts["valid"],
        tokenizer=TextTokenizer.load(plan.tokenizer),
        family="switch" if job.experts else "t5",
        sizes={**plan.sizes, **with_experts},
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
        optimizer=partial(adamw, learning_rate=plan.rate, weight_decay=0.01),
        schedule=InverseSquareRoot(warmup=WARMUP),
    )
    result = read_result(plan.out / job.name)
    return {
        "experts": job.experts,
        "seed": job.seed,
        "folder": job.name,
        "parameters": parameters_of(model.model),
        "steps": result.step,
        "tokens": result.tokens,
        "flops": result.flops,
        "seconds": result.seconds,
        "sizes": asdict(model.model.sizes),
    }


if __name__ == "__main__":
    try:
        typer.run(main)
    except QkvError as error:
        sys.exit(f"qkv: {error}")
