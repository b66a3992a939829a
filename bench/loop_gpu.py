"""What training costs beside the model's own arithmetic, on one GPU: waiting for data, and our loop around a step.

    python bench/loop_gpu.py                        # writes bench/results/loop_gpu.json
    python bench/loop_gpu.py --device cpu --small   # to see that it runs; writes nothing

GPT-2 of 124 million parameters, 32 rows of 1,024 tokens, bfloat16, compiled block by block, from shards on disk:

1. The share of the time in which the loop made batches while the GPU had nothing to do (an upper bound, see
   `train/prefetch.py`), once with all tokens made before and once while texts are still being tokenised. Windows are
   small, so that the run passes through many of them.
2. Steps of the loop against bare steps, written out below: the same model in the same compiled state, the same
   objective, optimizer and clipping, on a batch that stays on the GPU. Blocks of either alternate in one run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu import report
from torch import nn

from qkv.data.batches import Batches
from qkv.data.packing import LanguageBatch, stream
from qkv.data.plan import FixedShapes
from qkv.data.pronunciation import references
from qkv.data.sources import sources_of
from qkv.data.streaming import StreamedRows, Windows
from qkv.data.token_shards import TokenShards
from qkv.data.tokenizer import TextTokenizer
from qkv.models.catalogue import build
from qkv.models.gpt2 import SIZES, GPT2Sizes
from qkv.models.head_choice import HeadChoice
from qkv.train.loop import train
from qkv.train.objectives.language import LanguageLoss
from qkv.train.objectives.loss import Loss
from qkv.train.optimizers import adamw
from qkv.train.run_folder import RunFolder
from qkv.train.schedules import Constant
from qkv.train.settings import TrainSettings

WAIT_GOAL, OVERHEAD_GOAL = 0.01, 0.02
PLAIN = {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}


@dataclass(frozen=True)
class Plan:
    """How large everything is."""

    sizes: GPT2Sizes
    rows: int = 32
    length: int = 1024
    megabytes: float = 48.0  # of text, some 12 million tokens
    shards: int = 24
    window: int = 2  # shards: some 30 steps
    vocabulary: int = 8000  # of the tokenizer; the model's own is larger, which the data does not notice
    warm: int = 30  # steps that are not counted: programs are compiled there
    steps: int = 250
    block: int = 25  # steps of the loop, then bare ones
    precision: str = "bfloat16"
    compile: bool = True
    workers: int = 1


FULL = Plan(replace(SIZES["base"], **PLAIN))
SMALL = Plan(
    replace(FULL.sizes, width=32, hidden=64, layers=1, heads=2, positions=64, vocabulary=400),
    rows=4, length=64, megabytes=0.3, shards=6, vocabulary=400, warm=10, steps=60, block=10, precision="float32",
    compile=False, workers=0,
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that it runs; nothing is written")
    parser.add_argument("--workers", type=int, help="processes that make rows")
    given = parser.parse_args()
    plan = SMALL if given.small else FULL
    workers = plan.workers if given.workers is None else given.workers
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        tokenizer = write_corpus(place / "texts", plan)
        sources = sources_of(place / "texts")
        ready = TokenShards(sources, tokenizer, place / "tokens")
        began = time.perf_counter()
        ready.prepare()
        tokens = sum(len(ready.documents(number).tokens.ids) for number in range(len(ready)))
        made = tokens / (time.perf_counter() - began)
        measured = partial(run, plan=plan, device=given.device, workers=workers)
        warm = measured(ready, place / "warm")
        cold = measured(TokenShards(sources, tokenizer, place / "again"), place / "cold")
        alternating = Alternating(plan)
        measured(ready, place / "alternating", alternating=alternating)
    loop, bare = alternating.medians()
    rows = [
        {"case": "waiting for data, tokens made before", **warm, "goal": f"< {WAIT_GOAL:.0%}"},
        {"case": "waiting for data, tokens made meanwhile", **cold, "goal": f"< {WAIT_GOAL:.0%}"},
        {
            "case": "our loop against bare steps",
            "loop ms": round(1e3 * loop, 3),
            "bare ms": round(1e3 * bare, 3),
            "overhead": round(loop / bare - 1, 5),
            "blocks of each": len(alternating.loop),
            "goal": f"< {OVERHEAD_GOAL:.0%}",
        },
    ]
    remarks = {
        "model": f"gpt2, {plan.sizes.layers} layers of {plan.sizes.width}, {plan.precision}"
        + (", compiled" if plan.compile else ""),
        "batch": f"{plan.rows} × {plan.length} tokens",
        "corpus": f"{tokens:,} tokens in {len(sources)} shards, {plan.window} in a window, {workers} process for rows",
        "tokens/s tokenised beforehand": round(made),
    }
    if given.small:
        print(json.dumps({**remarks, "rows": rows}, indent=1, ensure_ascii=False))
    else:
        report("loop_gpu", rows, remarks)


def write_corpus(folder: Path, plan: Plan) -> TextTokenizer:
    """Documents of many lengths out of the words of a dictionary, the frequent ones frequent."""
    generator = np.random.default_rng(0)
    words = np.array(sorted(references()))
    chances = 1 / np.arange(3, len(words) + 3)
    order = generator.permutation(len(words))
    chances = np.cumsum(chances[order] / chances.sum())
    folder.mkdir()
    sample: list[str] = []
    for number in range(plan.shards):
        left = plan.megabytes * 1e6 / plan.shards
        with (folder / f"{number:03}.jsonl").open("w", encoding="utf-8") as file:
            while left > 0:
                count = int(min(generator.lognormal(6, 1), 20_000)) + 5
                text = " ".join(words[np.minimum(np.searchsorted(chances, generator.random(count)), len(words) - 1)])
                left -= file.write(json.dumps({"text": text}) + "\n")
                sample += [text] if number == 0 and len(sample) < 500 else []
    return TextTokenizer.train("bpe", sample, vocabulary=plan.vocabulary)


def run(
    shards: TokenShards,
    folder: Path,
    *,
    plan: Plan,
    device: str,
    workers: int,
    alternating: Alternating | None = None,
) -> dict[str, Any]:
    """A training by the loop itself; what it recorded after the first steps."""
    torch.manual_seed(0)
    model = build("gpt2", plan.sizes, HeadChoice("language"))
    make = partial(stream, length=plan.length, end=shards.tokenizer.end)
    batches = Batches(
        StreamedRows(Windows(shards, make, plan.window), workers),
        FixedShapes(plan.rows * (plan.length + 1), (plan.length,)),
    )
    settings = TrainSettings(
        steps=plan.warm + plan.steps, precision=plan.precision, compile=plan.compile, device=device, log_every=10
    )  # fmt: skip
    objective = Remembering()
    if alternating is not None:
        model.to(settings.torch_device())
        alternating.begin(model, objective, settings)
    train(
        model,
        objective,
        batches,
        settings,
        RunFolder(folder, save_model=lambda model, folder: None),
        optimizer=adamw(model),
        schedule=Constant(),
        adjust=alternating,
    )
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["kind"] == "train" and "step" in record]
    before = max((record for record in steps if record["step"] <= plan.warm), key=lambda record: record["step"])
    counted = [record for record in steps if record["step"] > plan.warm]
    spent = counted[-1]["seconds"] - before["seconds"]
    return {
        "share": round(sum(record["data_wait"] for record in counted) / spent, 5),
        "ms a step": round(1e3 * spent / (counted[-1]["step"] - before["step"]), 2),
        "tokens/s": round((counted[-1]["tokens"] - before["tokens"]) / spent),
    }


class Remembering:
    """The loss of a language model, and the batch it last saw: bare steps take that one."""

    counts = "tokens"

    def __init__(self) -> None:
        self.loss = LanguageLoss()
        self.batch: LanguageBatch | None = None

    def __call__(self, model: Any, batch: LanguageBatch) -> Loss:
        self.batch = batch
        return self.loss(model, batch)


@dataclass
class Alternating:
    """Called by the loop before each update: after every block of them it takes a block of bare steps."""

    plan: Plan
    loop: list[float] = field(default_factory=list)  # seconds a step, block by block
    bare: list[float] = field(default_factory=list)
    since: float | None = None

    def begin(self, model: nn.Module, objective: Remembering, settings: TrainSettings) -> None:
        self.objective, self.settings = objective, settings
        self.device = settings.torch_device()
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = adamw(model)

    def __call__(self, model: nn.Module, step: int, progress: float) -> None:
        if step <= self.plan.warm or (step - 1 - self.plan.warm) % self.plan.block:
            return
        self._wait()
        if self.since is not None:
            self.loop.append((time.perf_counter() - self.since) / self.plan.block)
        self._bare_steps(model, self.plan.block)
        self.since = time.perf_counter()

    def medians(self) -> tuple[float, float]:
        """Without the first bare block, in which the optimizer takes its memory."""
        return statistics.median(self.loop), statistics.median(self.bare[1:])

    def _bare_steps(self, model: nn.Module, steps: int) -> None:
        batch = self.objective.batch
        assert batch is not None
        began = time.perf_counter()
        for _ in range(steps):
            with self.settings.autocast(self.device):
                loss = self.objective.loss(model, batch)
            (loss.total / loss.count).backward()
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        self._wait()
        self.bare.append((time.perf_counter() - began) / steps)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


if __name__ == "__main__":
    main()
