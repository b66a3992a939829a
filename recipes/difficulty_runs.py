"""The jobs of `recipes/difficulty.py`: one start measured, one run trained. Workers do them, each a process."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console

from qkv.api.runs import typical_batch
from qkv.data.batches import Batches, ordered_batches
from qkv.data.pairs import PairBatch, Pairs
from qkv.data.plan import TokenBudget
from qkv.errors import QkvError
from qkv.look.difficulty import (
    FirstUpdate,
    RandomNoise,
    branch_shares,
    output_change,
    parameter_gradient_norms,
    stream_gradient_norms,
)
from qkv.models.catalogue import build
from qkv.models.sequence_to_sequence import SequenceToSequence
from qkv.models.transformer import TransformerSizes
from qkv.parts.admin import profile_stacks
from qkv.train.evaluation import ValidationLoss
from qkv.train.loop import train
from qkv.train.objectives.sequence_to_sequence import SequenceToSequenceLoss
from qkv.train.optimizers import adamw
from qkv.train.reporter import Reporter
from qkv.train.run_folder import RunFolder
from qkv.train.schedules import Linear
from qkv.train.settings import TrainSettings

FAMILIES = {
    "post-norm": "transformer",
    "pre-norm": "transformer-prenorm",
    "Admin": "transformer-admin",
    "ReZero": "transformer-rezero",
    "DeepNorm": "transformer-deepnorm",
}
PROFILED = 4000  # tokens of the batch that starts are measured on, and Admin is profiled on; the paper has 8192 at most
NOISE, NOISES = 0.01, 4  # of each matrix; how often it is drawn
FIRST_RATE = 1e-5  # of the update whose effect is measured: small enough to be one
# How runs are trained: what the rate is multiplied by, and whether it rises slowly.
SETTINGS = {"with warm-up": (1.0, True), "without warm-up": (1.0, False), "three times the rate": (3.0, True)}
OBJECTIVE = SequenceToSequenceLoss(smoothing=0.0)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What all jobs share; each worker is given it once."""

    pairs: Pairs
    valid: Pairs
    out: Path
    width: int
    hidden: int
    heads: int
    vocabulary: int
    steps: int
    rate: float
    warmup: int
    batch_tokens: int
    precision: Literal["float32", "bfloat16"]
    device: torch.device

    def model(self, wiring: str, layers: int, seed: int) -> SequenceToSequence:
        """A new model at its start; Admin's is profiled on a real batch."""
        sizes = TransformerSizes(
            vocabulary=self.vocabulary,
            width=self.width,
            hidden=self.hidden,
            heads=self.heads,
            encoder_layers=layers,
            decoder_layers=layers,
            dropout=0.1,
        )
        torch.manual_seed(seed)
        with self.device:
            model = build(FAMILIES[wiring], sizes)
        profile_stacks(model, partial(forward, model, self.batch()))
        return model

    def batch(self) -> PairBatch:
        return typical_batch(self.pairs, TokenBudget(PROFILED)).to(self.device)


HERE: list[Setup] = []  # of a worker: the one setup


def forward(model: SequenceToSequence, batch: PairBatch) -> torch.Tensor:
    return model(batch.source, batch.source_lengths, batch.target[:, :-1])


def mean_loss(model: SequenceToSequence, batch: PairBatch) -> torch.Tensor:
    loss = OBJECTIVE(model, batch)
    return loss.total / loss.count


def measure_start(wiring: str, layers: int, seed: int, with_gradients: bool) -> dict[str, Any]:
    """What can be said of a wiring before it has learned anything."""
    (setup,) = HERE
    model = setup.model(wiring, layers, seed)
    batch = setup.batch()
    run, loss = partial(forward, model, batch), partial(mean_loss, model, batch)
    noises = [output_change(model, run, RandomNoise(NOISE, seed=number)) for number in range(NOISES)]
    update = output_change(model, run, FirstUpdate(loss, FIRST_RATE))
    shares = branch_shares(model, run)
    found: dict[str, Any] = {
        "wiring": wiring,
        "layers": layers,
        "seed": seed,
        "noise": {stack: statistics.fmean(each[stack][-1] for each in noises) for stack in update},
        "update": {stack: values[-1] for stack, values in update.items()},
        "shares": {stack: sum(values.values()) for stack, values in shares.items()},
    }
    if with_gradients:
        found["stream_gradients"] = stream_gradient_norms(model, loss)
        found["parameter_gradients"] = parameter_gradient_norms(model, loss)
        found["share_of_each"] = shares
    return found


def train_one(wiring: str, layers: int, setting: str) -> dict[str, Any]:
    """One run from its start to its end, or to where it diverges."""
    (setup,) = HERE
    begun = time.perf_counter()
    factor, warmed = SETTINGS[setting]
    folder = setup.out / f"{wiring} {layers} {setting}".lower().replace(" ", "-")
    run = RunFolder(folder, save_model=lambda model, folder: None, overwrite=True)
    model = setup.model(wiring, layers, seed=0)
    held = [batch for _, batch in ordered_batches(setup.valid, 8192)]
    diverged = None
    try:
        train(
            model,
            OBJECTIVE,
            Batches(setup.pairs, TokenBudget(setup.batch_tokens, multiple_of=4)),
            TrainSettings(
                steps=setup.steps,
                clip=None,
                precision=setup.precision,
                device=str(setup.device),
                log_every=max(1, setup.steps // 25),
                gradient_norms=True,
                keep=1,
            ),
            run,
            optimizer=adamw(model, learning_rate=factor * setup.rate, betas=(0.9, 0.98)),
            schedule=Linear(warmup=setup.warmup if warmed else 0),
            evaluate=ValidationLoss(OBJECTIVE, held),
            reporter=Reporter(Console(quiet=True)),
        )
    except QkvError as error:
        diverged = str(error)
    finally:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    records = run.records()
    by_layer = [record for record in records if record["kind"] == "layers"]
    final = [record["figures"]["loss"] for record in records if record["kind"] == "final"]
    kept = [by_layer[0], by_layer[len(by_layer) // 2], by_layer[-1]] if by_layer else []
    return {
        "wiring": wiring,
        "layers": layers,
        "setting": setting,
        "diverged": diverged,
        "valid": final[-1] if final else None,
        "curve": [(record["step"], record["loss"]) for record in records if record["kind"] == "train"],
        "by_layer": [{name: record[name] for name in record if name != "kind"} for record in kept],
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": time.perf_counter() - begun,
    }


def begin(setup: Setup) -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 8))
    HERE[:] = [setup]
