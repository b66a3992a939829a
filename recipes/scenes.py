"""DETR in small: what is where in scenes of emoji on photos, learned from scratch.

    make corpora
    python recipes/scenes.py --corpora corpora --out runs/scenes

Scenes are composed of emoji cut-outs of a few kinds and photos of CIFAR-10, made larger, behind them. In the test
scenes both are others than in training: emoji of which no variant was trained on, and photos of the other part. All
scores are in `result.json`.
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import typer
from emoji_data import Emoji, Pixels, read_emoji

import qkv
from qkv.api.detection_training import NORMALISE, DetectionTraining, new_detection_model, train_detector
from qkv.api.training import read_result
from qkv.data.boxes import BoxedImages
from qkv.data.composing import Composer, Cutout
from qkv.data.plan import RowCount
from qkv.data.preprocessing import Exactly, Preprocessing
from qkv.data.stored_boxes import StoredBoxes, store_boxes
from qkv.errors import QkvError
from qkv.files import read_json, write_json
from qkv.generate.detect import Detector
from qkv.look.boxes import draw_boxes
from qkv.models.head_choice import HeadChoice
from qkv.train.metrics_of_boxes import score_boxes, score_by_size
from qkv.train.optimizers import adamw
from qkv.train.schedules import WarmupStableDecay

# A kind is some subcategories of emoji that look alike.
KINDS = {
    "face": ("face-smiling", "face-affection", "face-tongue", "face-hand", "face-neutral-skeptical", "face-sleepy",
             "face-unwell", "face-hat", "face-glasses", "face-concerned", "face-negative"),
    "person": ("person", "person-gesture", "person-role", "person-fantasy"),
    "hand": ("hand-fingers-open", "hand-fingers-partial", "hand-single-finger", "hand-fingers-closed", "hands"),
    "mammal": ("animal-mammal", "monkey-face"),
    "bird": ("animal-bird",),
    "sea animal": ("animal-marine",),
    "fruit": ("food-fruit", "food-vegetable"),
    "dish": ("food-prepared", "food-asian", "food-sweet"),
    "vehicle": ("transport-ground",),
    "building": ("place-building", "place-religious"),
    "clothing": ("clothing",),
    "heart": ("heart",),
    "clock": ("time",),
    "flag": ("country-flag",),
    "sign": ("alphanum", "zodiac", "av-symbol", "keycap", "religion"),
    "plant": ("plant-flower", "plant-other"),
}  # fmt: skip
SIDE = 128
TURNED = 15.0  # degrees that an emoji may be turned by
MADE_ALONE = 2000  # scenes
PHOTOS = {"train": ("train", 0, 4000), "valid": ("train", 4000, 4500), "test": ("test", 0, 1000)}  # file, first, last
TESTED, VALIDATED = 0.2, 0.1  # shares of each kind's families of emoji
SCORED = 250  # validation scenes in which objects are looked for at each evaluation
DRAWN = 6  # test scenes that are drawn with what was found
SEEN = 0.5  # probability from which on it is drawn


def main(
    corpora: Annotated[Path, typer.Option(help="folder that `make corpora` filled")],
    out: Annotated[Path, typer.Option(help="folder for the run")],
    photos: Annotated[
        str, typer.Option(help="folder with CIFAR-10, or the beginning of it, beneath the corpora")
    ] = "cifar-10",
    steps: int = 7000,
    scenes: Annotated[int, typer.Option(help="scenes to train on")] = 30_000,
    held: Annotated[int, typer.Option(help="scenes to validate on, and twice as many to test on")] = 500,
    rows: Annotated[int, typer.Option(help="scenes of a batch")] = 64,
    width: int = 192,
    layers: Annotated[int, typer.Option(help="of the encoder, and of the decoder")] = 3,
    queries: int = 20,
    learning_rate: float = 6e-4,
    precision: Literal["float32", "bfloat16"] = "bfloat16",
    device: str = "auto",
    workers: Annotated[int, typer.Option(help="processes that compose scenes")] = 6,
) -> None:
    pictures, emoji = read_emoji(corpora / "emoji")
    parts = divided(emoji)
    behind = read_photos(corpora / photos)
    data = {
        "train": composed(pictures, parts["train"], behind["train"], scenes, workers, seed=0),
        "valid": composed(pictures, parts["valid"], behind["valid"], held, workers, seed=1),
        "test": composed(pictures, parts["test"], behind["test"], 2 * held, workers, seed=2),
        # The same emoji as in training, in other scenes before other photos: how much is owed to knowing them?
        "known emoji": composed(pictures, parts["train"], behind["test"], held, workers, seed=3),
    }
    sizes = {
        "stem": 64, "stage_widths": (64, 128, 256), "stage_depths": (2, 2, 2), "residual": "basic",
        "queries": queries, "width": width, "encoder_hidden": 4 * width, "decoder_hidden": 4 * width,
        "encoder_heads": width // 32, "decoder_heads": width // 32, "encoder_layers": layers, "decoder_layers": layers,
        "dropout": 0.0,
    }  # fmt: skip
    how = DetectionTraining(
        batching=RowCount(rows),
        settings=qkv.TrainSettings(
            steps=steps, precision=precision, device=device, clip=0.1, evaluate_every=max(1, steps // 8), keep=1,
            watch="map", better="higher",
        ),
        scored=SCORED,
        optimizer=partial(adamw, learning_rate=learning_rate, weight_decay=1e-4),
        schedule=WarmupStableDecay(warmup=min(500, steps // 10), decay=0.35),
    )  # fmt: skip
    trained = train_detector(data["train"], out / "detr", valid=data["valid"], sizes=sizes, how=how)
    torch.manual_seed(1)
    untrained = Detector(
        new_detection_model(sizes, HeadChoice("detection", labels=data["train"].names)).to(how.settings.torch_device()),
        Preprocessing(resize=Exactly(SIDE, SIDE), filter="bilinear", normalise=NORMALISE),
    )
    test = scores(trained, data["test"])
    drawings(trained, data["test"], out / "drawn")
    session = read_json(out / "detr" / "run.json")["sessions"][-1]
    write_json(
        out / "result.json",
        {
            "model": "detr",
            "sizes": asdict(trained.model.sizes),
            "parameters": sum(parameter.numel() for parameter in trained.model.parameters()),
            "device": session["hardware"]["device"],
            "versions": session["versions"],
            "recipe": {
                "steps": steps,
                "scenes of a batch": rows,
                "precision": precision,
                "optimizer": f"adamw {how.optimizer.keywords}, for the residual network too; gradients clipped to 0.1",
                "schedule": repr(how.schedule),
                "residual network": "new, with batch norms that learn",
                "scenes": f"{SIDE} × {SIDE}, 1 to 5 objects, 0.15 to 0.5 of it long, turned by up to {TURNED:g}°",
                "mirrored": how.mirrored,
            },
            "kinds": list(data["train"].names),
            "emoji": {part: counted(some) for part, some in parts.items()},
            "scenes": {part: len(some) for part, some in data.items()},
            "objects": {part: sum(map(len, some.boxes)) for part, some in data.items()},
            "run": {**asdict(read_result(out / "detr")), "folder": "detr"},
            "test": test,
            "known emoji": scores(trained, data["known emoji"]),
            "untrained": scores(untrained, data["test"]),
        },
    )
    print((out / "result.json").read_text(encoding="utf-8"))


def kind_of(emoji: Emoji) -> str | None:
    return next((kind for kind, some in KINDS.items() if emoji.subcategory in some), None)


def divided(emoji: Sequence[Emoji]) -> dict[str, list[Emoji]]:
    """Emoji of the kinds that are asked for; of each kind a share is held out, whole families at a time."""
    parts: dict[int, str] = {}
    for kind in KINDS:
        families = {each.family for each in emoji if kind_of(each) == kind} - parts.keys()
        order = sorted(families, key=lambda family: zlib.crc32(f"family {family}".encode()))
        tested, validated = (max(2, round(share * len(order))) for share in (TESTED, VALIDATED))
        for number, family in enumerate(order):
            parts[family] = "test" if number < tested else "valid" if number < tested + validated else "train"
    return {part: [each for each in emoji if kind_of(each) and parts[each.family] == part] for part in PHOTOS}


def counted(emoji: Sequence[Emoji]) -> dict[str, int]:
    """Different emoji of each kind."""
    counts = Counter(kind for each in emoji if (kind := kind_of(each)) is not None)
    return {kind: counts[kind] for kind in KINDS}


def read_photos(folder: Path) -> dict[str, list[Pixels]]:
    """[32 32 3] each"""
    files = {part: np.load(folder / f"{part}-images.npy", mmap_mode="r") for part in ("train", "test")}
    return {part: list(np.asarray(files[file][first:last])) for part, (file, first, last) in PHOTOS.items()}


def composed(
    pictures: Pixels, emoji: Sequence[Emoji], photos: Sequence[Pixels], count: int, workers: int, seed: int
) -> StoredBoxes:
    """Scenes in which every kind is as frequent as the others, however many emoji it has."""
    by_kind: dict[str, list[Cutout]] = {kind: [] for kind in KINDS}
    for each in emoji:
        if (kind := kind_of(each)) is not None:
            by_kind[kind] += [Cutout(kind, pictures[place]) for place in each.pictures]
    if empty := [kind for kind, some in by_kind.items() if not some]:
        raise QkvError(f"There is no emoji of the kind {empty[0]} in this part.")
    most = max(map(len, by_kind.values()))
    cutouts = [some[number % len(some)] for some in by_kind.values() for number in range(most)]
    composer = Composer(cutouts=cutouts, backgrounds=photos, scenes=count, size=(SIDE, SIDE), turned=TURNED, seed=seed)
    names = tuple(sorted(KINDS))
    few = count <= MADE_ALONE  # other processes would take longer to start
    return store_boxes(BoxedImages(composer, names), (SIDE, SIDE), workers=1 if few else workers)


def scores(model: Detector, data: StoredBoxes) -> dict[str, Any]:
    """Average precisions, over all objects, by size and by kind."""
    images = data.as_images()
    found = model.run([item.image for item in images.items], threshold=0.0, batch=64)
    wanted = [item.boxes for item in images.items]
    return {**asdict(score_boxes(found, wanted)), "by_size": score_by_size(found, wanted)}


def drawings(model: Detector, data: StoredBoxes, folder: Path) -> None:
    """The first scenes with what was found in them, as small PNG files."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = [item.image for item in data.some(range(min(DRAWN, len(data)))).as_images().items]
    for number, (picture, boxes) in enumerate(zip(pictures, model.run(pictures, threshold=SEEN), strict=True)):
        draw_boxes(picture, boxes).quantize(128).save(folder / f"scene-{number}.png", optimize=True)


if __name__ == "__main__":
    try:
        typer.run(main)
    except QkvError as error:
        sys.exit(f"qkv: {error}")
