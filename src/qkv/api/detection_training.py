"""Training on pictures with boxes, as DETR was trained: all objects of a picture are found at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from qkv.api.choices import Sizes, named_sizes
from qkv.api.how import Training
from qkv.api.runs import check_folder, parameters_of, run_training
from qkv.data.batches import Batches
from qkv.data.box_rows import AnyBoxBatch, BoxRows
from qkv.data.boxes import BoxedImages
from qkv.data.images import Source
from qkv.data.plan import Batching, PlannedBatch, RowCount
from qkv.data.preprocessing import IMAGENET_MEAN, IMAGENET_STD, EdgesUpTo, Exactly, Normalise, Preprocessing
from qkv.data.preprocessing_files import write_preprocessing
from qkv.data.stored_boxes import StoredBoxes, StoredBoxRows
from qkv.errors import QkvError
from qkv.generate.detect import Detector
from qkv.models.catalogue import build, find_family
from qkv.models.detection_model import DetectionModel
from qkv.models.head_choice import HeadChoice
from qkv.train.adapt.backbone import BackboneRate
from qkv.train.flops import flops_per_counted_token
from qkv.train.metrics_of_boxes import BoxScores, score_boxes
from qkv.train.objectives.detection import SetPredictionLoss
from qkv.train.objectives.loss import Loss
from qkv.train.optimizers import adamw
from qkv.train.reporter import Reporter
from qkv.train.schedules import Schedule, WarmupStableDecay
from qkv.train.settings import TrainSettings
from qkv.weights.load import with_head

FAMILY = "detr"
# Gradients are clipped to 0.1 [carion2020 §A.4]; the best weights are those of the highest average precision.
SETTINGS = TrainSettings(steps=5000, clip=0.1, evaluate_every=500, save_every=500, keep=2, watch="map", better="higher")
NORMALISE = Normalise(1 / 255, IMAGENET_MEAN, IMAGENET_STD)
ANY_SIZE = Preprocessing(resize=EdgesUpTo(800, 1333), normalise=NORMALISE, padding="to largest")  # [carion2020 §4]

Boxed = BoxedImages | StoredBoxes


@dataclass(frozen=True, kw_only=True)
class DetectionTraining(Training):
    """How objects are learned. Without an `optimizer`: the paper's for a loaded model, one that suits a new one."""

    mirrored: float = 0.5  # the share of pictures that are shown as in a mirror
    batching: Batching = RowCount(16)  # noqa: RUF009 (frozen)
    settings: TrainSettings = SETTINGS
    schedule: Schedule = WarmupStableDecay(warmup=200, decay=0.3)  # noqa: RUF009 (frozen)
    scored: int | None = None  # held-out pictures in which objects are looked for at each evaluation; None: all


HOW = DetectionTraining()
# [carion2020 §A.4]: the residual network comes from elsewhere, and learns ten times as slowly.
AS_PUBLISHED = partial(adamw, learning_rate=1e-4, weight_decay=1e-4, rates=BackboneRate(0.1))
FROM_SCRATCH = partial(adamw, learning_rate=5e-4, weight_decay=1e-4)


def train_detector(
    data: Boxed,
    folder: Path | str,
    *,
    valid: Boxed | None = None,
    model: Detector | None = None,
    sizes: Sizes = "desk",
    preprocessing: Preprocessing | None = None,
    objective: SetPredictionLoss = SetPredictionLoss(),  # noqa: B008 (frozen)
    how: DetectionTraining = HOW,
    evaluate: Callable[[Detector], Mapping[str, float]] | None = None,
) -> Detector:
    """Learn to find objects; the model is returned, and left in `folder` with its history.

    Without `model` a new DETR is trained, whose residual network learns its batch norms with it. With one, it gets a
    head for the classes of the data where its own is for others. Pictures that are stored have one size, for which a
    new model is made; others are read again in every epoch and prepared by `preprocessing`, by default as published.
    """
    folder = Path(folder)
    check_folder(folder, how.resume, how.overwrite)
    if valid is not None and valid.names != data.names:
        raise QkvError(f"The validation classes {', '.join(valid.names)} are not those of the training pictures.")
    if valid is None and how.hold_out:
        data, valid = divided_boxes(data, how.hold_out, how.settings.seed)
    torch.manual_seed(how.settings.seed)
    choice = HeadChoice("detection", labels=data.names)
    if model is None:
        use = Detector(new_detection_model(sizes, choice), preprocessing or _preparing(data))
    else:
        if preprocessing is not None:
            raise QkvError("A loaded model has a preprocessing of its own: leave the other out.")
        network = model.model if model.model.head_choice == choice else with_head(model.model, choice)
        use = Detector(network, model.preprocessing)
    optimizer = how.optimizer or (FROM_SCRATCH if model is None else AS_PUBLISHED)
    rows, held = _rows(data, use.preprocessing), None if valid is None else _rows(valid, use.preprocessing)
    batches: Batches[Any] = Batches(rows.anew(how.settings.seed, how.mirrored), how.batching, seed=how.settings.seed)
    (how.reporter or Reporter()).say(
        f"{len(data):,} pictures to train on, {len(valid) if valid else 0:,} to validate on; {use.model.family}, "
        f"{parameters_of(use.model):,} parameters. Batches in an epoch: {len(batches):,}."
    )
    first = rows.batch(how.batching.plan(*rows.sizes, np.random.default_rng(0))[0])
    return run_training(
        use,
        objective,
        batches,
        how.settings,
        folder,
        about={
            "family": use.model.family,
            "sizes": asdict(use.model.sizes),
            "head": choice.config(),
            "preprocessing": repr(use.preprocessing),
            "data": {"batching": repr(how.batching), "mirrored": how.mirrored},
        },
        fingerprint=fingerprint_of_boxes(data, valid),
        optimizer=optimizer,
        schedule=how.schedule,
        evaluate=_validation(use, objective, valid, held, how, evaluate),
        flops_per_token=flops_per_counted_token(use.model, _Outputs(), first),
        leave=lambda where: write_preprocessing(use.preprocessing, where),
        reporter=how.reporter,
        resume=how.resume,
        overwrite=how.overwrite,
    )


def new_detection_model(sizes: Sizes, head: HeadChoice) -> DetectionModel:
    """A new DETR. Statistics of norms that are fixed come from elsewhere, so a new one learns them unless told."""
    chosen = find_family(FAMILY)
    values: dict[str, Any] = named_sizes(chosen, sizes if isinstance(sizes, str) else "desk")
    changes: Mapping[str, Any] = {} if isinstance(sizes, str) else sizes
    model: DetectionModel = build(FAMILY, chosen.sizes({**values, "map_norm": "batch", **changes}), head)
    return model


def detection_scores(model: Detector, data: Boxed, *, batch: int = 32) -> BoxScores:
    """Average precision of what a model finds in pictures, however unlikely it holds it to be."""
    pictures, wanted = _pictures(data)
    return score_boxes(model.run(pictures, threshold=0.0, batch=batch), wanted)


def divided_boxes(data: Boxed, share: float, seed: int = 0) -> tuple[Any, Any]:
    """(to train on, held out): about a share of the pictures, drawn at random, one at least."""
    places = np.random.default_rng(seed).permutation(len(data))
    held = max(1, round(share * len(data)))
    if held >= len(data):
        raise QkvError(
            f"A share of {share:g} of {len(data)} pictures leaves nothing to train on: choose another share."
        )
    parts = (np.sort(places[held:]).tolist(), np.sort(places[:held]).tolist())
    if isinstance(data, StoredBoxes):
        return data.some(parts[0]), data.some(parts[1])
    kept, left = (replace(data, items=[data.items[place] for place in some], problems=[]) for some in parts)
    return kept, left


def fingerprint_of_boxes(*parts: Boxed | None) -> str:
    """A short name for these very objects in this very order, and for the pixels where they are at hand."""
    digest = hashlib.sha256()
    for data in parts:
        if isinstance(data, StoredBoxes):
            digest.update(repr((data.pixels.shape, data.names, list(data.boxes))).encode())
            for first in range(0, len(data), 4096):
                digest.update(data.pixels[first : first + 4096].tobytes())
        elif data is not None:
            sources = [
                (str(item.image) if isinstance(item.image, str | Path) else "", item.boxes) for item in data.items
            ]
            digest.update(repr((data.names, sources)).encode())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class _Outputs:
    """For counting operations: a matching needs numbers, and only the model's own are counted."""

    counts: ClassVar[str] = "objects"

    def __call__(self, model: Any, batch: AnyBoxBatch) -> Loss:
        layers = model.every_layer(batch.pixels, pixel_mask=batch.real)
        return Loss(torch.stack([each.logits.sum() + each.boxes.sum() for each in layers]).sum(), max(1, batch.objects))


def _validation(
    use: Detector,
    objective: SetPredictionLoss,
    valid: Boxed | None,
    rows: BoxRows | StoredBoxRows | None,
    how: DetectionTraining,
    evaluate: Callable[[Detector], Mapping[str, float]] | None,
) -> Callable[[nn.Module], dict[str, float]] | None:
    if valid is None and evaluate is None:
        return None

    def figures(model: nn.Module) -> dict[str, float]:
        more = evaluate(use) if evaluate is not None else {}
        if valid is None or rows is None:
            return dict(more)
        count = len(valid) if how.scored is None else min(how.scored, len(valid))
        pictures, wanted = _pictures(valid, count)
        plan: list[PlannedBatch] = how.batching.plan(*rows.sizes, np.random.default_rng(0))
        scores = score_boxes(use.run(pictures, threshold=0.0, batch=len(plan[0].rows)), wanted)
        losses = _losses(use.model, objective, rows, plan)
        return {**losses, "map": scores.average, "map50": scores.at_half, "recall": scores.recall, **more}

    return figures


def _losses(
    model: DetectionModel, objective: SetPredictionLoss, rows: BoxRows | StoredBoxRows, plan: Sequence[PlannedBatch]
) -> dict[str, float]:
    device = next(model.parameters()).device
    totals: dict[str, float] = {}
    counts: dict[str, int] = {}
    for planned in plan:
        for name, loss in objective.measure(model, rows.batch(planned).to(device)).items():
            totals[name] = totals.get(name, 0.0) + float(loss.total)
            counts[name] = counts.get(name, 0) + loss.count
    return {name.replace(" ", "_"): total / max(1, counts[name]) for name, total in totals.items()}


def _pictures(data: Boxed, count: int | None = None) -> tuple[list[Source], list[tuple[Any, ...]]]:
    """The first pictures, and what is there in each."""
    whole = (
        data.some(range(len(data) if count is None else count)).as_images() if isinstance(data, StoredBoxes) else data
    )
    items = whole.items[: len(whole) if count is None else count]
    return [item.image for item in items], [item.boxes for item in items]


def _rows(data: Boxed, preprocessing: Preprocessing) -> BoxRows | StoredBoxRows:
    if isinstance(data, BoxedImages):
        return BoxRows(data, preprocessing)
    if preprocessing.size != data.size:
        raise QkvError(
            f"The stored pictures are {data.size[0]} × {data.size[1]}, and the model reads them otherwise "
            f"({preprocessing.resize}): store them at its own size, or give them unstored."
        )
    return StoredBoxRows.of(data, preprocessing.normalise)


def _preparing(data: Boxed) -> Preprocessing:
    if isinstance(data, BoxedImages):
        return ANY_SIZE
    return Preprocessing(resize=Exactly(*data.size), filter="bilinear", normalise=NORMALISE)
