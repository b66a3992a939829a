"""What a ViT lacks on little data, and what makes up for it: more of it, pre-training, or a convolutional teacher.

    python recipes/pictures.py --data corpora/cifar-10 --out runs/pictures/cifar-10
    python recipes/pictures.py --data corpora/fashion-mnist --out runs/pictures/fashion-mnist

A ResNet and a ViT of about the same arithmetic learn from all labels of a set and from a tenth of them, each from the
same number of pictures. A DeiT learns from the ResNet besides, also from the pictures whose labels are not given, which
the ResNet names; and a ViT that first learned, from all the pictures and no label, what hidden patches were learns from
the tenth. All scores, on the whole test part, are in `result.json`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import typer
from resnet import ResNetFolder, SmallResNet
from torch import nn

import qkv
from qkv.api.image_training import ImageTraining, fingerprint_of_images, plain_preprocessing
from qkv.api.runs import parameters_of, run_training, typical_batch, validation
from qkv.api.training import read_result
from qkv.data.augment import Flip, InTurn, Shift
from qkv.data.batches import Batches, ordered_batches
from qkv.data.classes import divided_rows
from qkv.data.image_rows import ImageRows
from qkv.data.image_sets import read_image_set
from qkv.data.plan import RowCount
from qkv.data.preprocessing import Normalise
from qkv.data.token_rows import Ints
from qkv.errors import QkvError
from qkv.files import read_json, write_json
from qkv.generate.image_readers import ImageReader
from qkv.train.evaluation import ValidationLoss
from qkv.train.flops import flops_per_counted_token
from qkv.train.objectives.images import HardDistillationLoss, ImageClassificationLoss
from qkv.train.optimizers import adamw, decay_groups
from qkv.train.schedules import Cosine

EVALUATIONS = 8  # of each run
HELD_OUT = 0.1  # of the labels that a run is given: what its weights are chosen by
TESTED_AT_ONCE = 8192  # tokens, as pictures are counted


@dataclass(frozen=True)
class Budget:
    """Pictures that a run sees, and the highest learning rates."""

    all_labels: int
    few_labels: int
    pretraining: int
    rate: float
    fine_tuning_rate: float
    resnet_rate: float


class Comparison:
    """All runs on one set; what is known so far is always in `result.json`."""

    def __init__(self, train: ImageRows, test: ImageRows, out: Path, budget: Budget, how: ImageTraining, sizes: Any):
        self.train, self.test, self.out, self.budget, self.how, self.sizes = train, test, out, budget, how, sizes
        self.normalise: Normalise = plain_preprocessing(train).normalise
        self.result: dict[str, Any] = {"runs": []}

    def of_labels(self, labels: str, given: Places, seen: int, seed: int) -> None:
        """A ResNet, a ViT and a DeiT that the ResNet teaches, on the same labels."""
        places, held = divided_rows(given, HELD_OUT, seed)
        rows, valid = self.train.some(places.places), self.train.some(held.places)
        resnet = self.resnet(labels, rows, valid, seen, seed)
        lesson = HardDistillationLoss(resnet.model, normalise=self.normalise)
        learn = partial(
            qkv.train_image_classifier, valid=valid, sizes=self.sizes, how=self.training(seen, seed, self.budget.rate)
        )
        taught = partial(learn, family="deit", head="distilled", objective=lesson)
        self.run("ViT", labels, seed, lambda folder: learn(rows, folder).model)
        self.run("DeiT", labels, seed, lambda folder: taught(rows, folder).model)
        if len(given) < len(self.train):
            others = np.setdiff1d(np.arange(len(self.train)), given.places)
            named = replace(self.train.some(others), labels=self.names_given(resnet.model, self.train.some(others)))
            both = replace(
                rows, pixels=np.concatenate([rows.pixels, named.pixels]), labels=np.append(rows.labels, named.labels)
            )
            self.run("DeiT, all pictures", labels, seed, lambda folder: taught(both, folder).model)

    def names_given(self, model: nn.Module, rows: ImageRows) -> Ints:
        """What a model takes pictures for."""
        device = self.how.settings.torch_device()
        found = np.zeros(len(rows), np.int64)
        with torch.no_grad(), self.how.settings.autocast(device):
            model.eval()
            for places, batch in ordered_batches(rows, TESTED_AT_ONCE):
                found[places] = model(batch.to(device).prepared(self.normalise).images).argmax(-1).cpu().numpy()
        return found

    def pretrained(self, seen: int) -> ImageReader:
        """A ViT that has seen all pictures to train on, and no label."""
        folder = self.out / "pretraining"
        how = replace(self.training(seen, 0, self.budget.rate), hold_out=0.02)
        how = replace(how, settings=replace(how.settings, watch="loss", better="lower"))
        found = qkv.pretrain_image_model(self.train, folder, sizes=self.sizes, how=how)
        self.result["pretraining"] = {**asdict(read_result(folder)), "folder": folder.name}
        return found

    def fine_tuned(self, start: ImageReader, labels: str, given: Places, seen: int, seed: int) -> None:
        places, held = divided_rows(given, HELD_OUT, seed)
        rows, valid = self.train.some(places.places), self.train.some(held.places)
        how = self.training(seen, seed, self.budget.fine_tuning_rate)
        self.run(
            "ViT, pre-trained",
            labels,
            seed,
            lambda folder: qkv.train_image_classifier(rows, folder, valid=valid, model=start, how=how).model,
        )

    def resnet(self, labels: str, rows: ImageRows, valid: ImageRows, seen: int, seed: int) -> ResNetFolder:
        """The peer, by the same loop from the same batches."""
        torch.manual_seed(seed)
        use = ResNetFolder(SmallResNet(rows.size[0], len(rows.names)), rows.names)
        how = self.training(seen, seed, self.budget.rate)
        objective = ImageClassificationLoss(normalise=self.normalise)

        def learn(folder: Path) -> nn.Module:
            run_training(
                use,
                objective,
                Batches(rows.anew(seed, how.augment, None), how.batching, seed=seed),
                replace(how.settings, clip=None),
                folder,
                about={"family": "resnet"},
                fingerprint=fingerprint_of_images(rows, valid),
                optimizer=partial(sgd, rate=self.budget.resnet_rate),
                schedule=how.schedule,
                evaluate=validation(use, objective, valid, None),
                flops_per_token=flops_per_counted_token(use.model, objective, typical_batch(rows, how.batching)),
            )
            return use.model

        self.run("ResNet", labels, seed, learn)
        return use

    def training(self, seen: int, seed: int, rate: float) -> ImageTraining:
        assert isinstance(self.how.batching, RowCount)
        steps = max(1, seen // self.how.batching.rows)
        settings = replace(
            self.how.settings,
            steps=steps,
            seed=seed,
            evaluate_every=max(1, steps // EVALUATIONS),
            watch="accuracy",
            better="higher",
        )
        optimizer = partial(adamw, learning_rate=rate, weight_decay=0.05)
        return replace(self.how, settings=settings, optimizer=optimizer, schedule=Cosine(warmup=max(1, steps // 10)))

    def run(self, model: str, labels: str, seed: int, learn: Callable[[Path], nn.Module]) -> None:
        """Train a model, and score it on the test part, once."""
        folder = self.out / f"{labels}-{model.lower().replace(',', '').replace(' ', '-')}-{seed}"
        trained = learn(folder)
        self.result["runs"].append(
            {
                **asdict(read_result(folder)),
                "folder": folder.name,
                "model": model,
                "labels": labels,
                "seed": seed,
                "parameters": parameters_of(trained),
                "test": self.scores(trained),
            }
        )
        session = read_json(folder / "run.json")["sessions"][-1]
        self.result |= {"device": session["hardware"]["device"], "versions": session["versions"]}
        self.write()

    def scores(self, model: nn.Module) -> dict[str, float]:
        objective = ImageClassificationLoss(normalise=self.normalise)
        batches = [batch for _, batch in ordered_batches(self.test, TESTED_AT_ONCE)]
        with torch.no_grad(), self.how.settings.autocast(self.how.settings.torch_device()):
            return ValidationLoss(objective, batches)(model.eval())

    def write(self) -> None:
        write_json(self.out / "result.json", self.result)


def sgd(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """With momentum and decay as residual networks are trained. [he2016 §4.2]"""
    return torch.optim.SGD(decay_groups(model, 5e-4), lr=rate, momentum=0.9, nesterov=True, fused=True)


@dataclass(frozen=True)
class Places:
    """Where pictures stand in the set, and the classes of them."""

    places: Ints
    labels: Ints
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.places)

    def some(self, chosen: Sequence[int] | Ints) -> Places:
        chosen = np.asarray(chosen)
        return Places(self.places[chosen], self.labels[chosen], self.names)


def all_labels(rows: ImageRows) -> Places:
    return Places(np.arange(len(rows)), rows.labels, rows.names)


def some_labels(rows: ImageRows, share: float, seed: int) -> Places:
    """The same share of every class, others for another seed."""
    return divided_rows(all_labels(rows), share, 1000 + seed)[1]


def main(
    data: Annotated[Path, typer.Option(help="folder of the set, such as corpora/cifar-10")],
    out: Annotated[Path, typer.Option(help="folder for all runs")],
    share: Annotated[float, typer.Option(help="of the labels that stand for little data")] = 0.1,
    seeds: Annotated[int, typer.Option(help="of the comparison on little data, each with labels of its own")] = 3,
    minutes: Annotated[float | None, typer.Option(help="after which no further seed is begun")] = None,
    seen_all: Annotated[int, typer.Option(help="pictures that a run on all labels sees")] = 700_000,
    seen_few: Annotated[int, typer.Option(help="pictures that a run on few labels sees")] = 300_000,
    seen_pretraining: int = 600_000,
    rows: int = 256,
    width: int = 192,
    layers: int = 6,
    patch: int = 4,
    rate: float = 1e-3,
    fine_tuning_rate: float = 5e-4,
    resnet_rate: float = 0.1,
    precision: Literal["float32", "bfloat16"] = "bfloat16",
    device: str = "auto",
    limit: Annotated[int | None, typer.Option(help="use so few pictures: to try it out")] = None,
) -> None:
    begun = time.monotonic()
    train, test = (in_memory(read_image_set(data, part), limit) for part in ("train", "test"))
    how = ImageTraining(
        augment=InTurn((Shift(train.size[1] // 8), Flip())),
        batching=RowCount(rows),
        settings=qkv.TrainSettings(steps=1, precision=precision, device=device, keep=1),
    )
    budget = Budget(seen_all, seen_few, seen_pretraining, rate, fine_tuning_rate, resnet_rate)
    sizes = {"patch": patch, "width": width, "hidden": 4 * width, "heads": max(1, width // 64), "layers": layers}
    found = Comparison(train, test, out, budget, how, sizes)
    found.result |= {
        "set": data.name,
        "pictures": {"train": len(train), "few": len(some_labels(train, share, 0)), "test": len(test)},
        "size": list(train.size),
        "classes": list(train.names),
        "sizes": sizes,
        "recipe": {
            "batch": f"{rows} pictures, {precision}",
            "pictures seen": f"{seen_all:,} on all labels, {seen_few:,} on few, {seen_pretraining:,} without labels",
            "changes": "moved by up to an eighth of the side, mirrored",
            "ViT and DeiT": f"AdamW, rate {rate:g} (fine-tuning {fine_tuning_rate:g}), decay 0.05, norm up to 1",
            "ResNet": f"SGD, rate {resnet_rate:g}, momentum 0.9 (Nesterov), decay 0.0005",
            "schedule": "a tenth of the updates to warm up, then half a cosine",
            "weights": f"those with the best accuracy on {HELD_OUT:.0%} of the labels a run is given",
        },
    }
    start = found.pretrained(seen_pretraining)
    longest = 0.0
    for seed in range(seeds):
        before = time.monotonic()
        if minutes is not None and before - begun + longest > 60 * minutes:
            print(f"No time for seed {seed} and those after it.")
            break
        some = some_labels(train, share, seed)
        found.of_labels("few", some, seen_few, seed)
        found.fine_tuned(start, "few", some, seen_few, seed)
        longest = max(longest, time.monotonic() - before)
        if seed == 0:
            found.of_labels("all", all_labels(train), seen_all, 0)
    print((out / "result.json").read_text(encoding="utf-8"))


def in_memory(rows: ImageRows, limit: int | None) -> ImageRows:
    """All pictures, or with a limit so many, evenly spread."""
    places = np.arange(len(rows)) if limit is None else np.linspace(0, len(rows) - 1, limit).astype(np.int64)
    return rows.some(places)


if __name__ == "__main__":
    try:
        typer.run(main)
    except QkvError as error:
        sys.exit(f"qkv: {error}")
