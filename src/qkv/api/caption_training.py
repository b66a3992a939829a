"""Training on pictures with captions, as CLIP was trained: each learns which of the other's belongs to it.

Shapes: n pairs, j width of the joint space.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qkv.api.choices import NewTokenizer, Sizes, named_sizes
from qkv.api.how import Training
from qkv.api.runs import check_folder, divided, parameters_of, run_training, typical_batch
from qkv.api.texts import chosen_tokenizer
from qkv.data.augment import Augmentation
from qkv.data.batches import Batches
from qkv.data.captioned import Captioned, CaptionRows
from qkv.data.plan import Batching, RowCount
from qkv.data.preprocessing import HALF, Exactly, Normalise, Preprocessing
from qkv.data.preprocessing_files import write_preprocessing
from qkv.data.reading_tokenizer import for_captions
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.image_text import ImageTextReader
from qkv.generate.reader import TOKENIZER_FILE
from qkv.models.catalogue import build, find_family
from qkv.models.image_text_model import ImageTextModel
from qkv.train.flops import flops_per_counted_token
from qkv.train.metrics_of_retrieval import score_retrieval
from qkv.train.objectives.image_text import ImageTextLoss
from qkv.train.optimizers import adamw
from qkv.train.reporter import Reporter
from qkv.train.settings import TrainSettings

FAMILY = "clip"
FOLLOWING = ("image", "channels", "vocabulary", "end")  # sizes that follow from the data
LONGEST_CAPTION = 77  # tokens of a new model's texts [radford2021 §2.4]
HASHED_AT_ONCE = 4096  # pictures
COMPARED = 4096  # held-out pairs that are compared with each other for the loss
SETTINGS = TrainSettings(steps=2000, evaluate_every=200, save_every=200, keep=2, watch="accuracy", better="higher")


@dataclass(frozen=True, kw_only=True)
class CaptionTraining(Training):
    """How pictures and captions are learned. Without an `optimizer`: that of the paper. [radford2021 §2.5]"""

    augment: Augmentation | None = None  # how pictures are changed while training
    batching: Batching = RowCount(128)  # noqa: RUF009 (frozen)
    settings: TrainSettings = SETTINGS


HOW = CaptionTraining()
AS_PUBLISHED = partial(adamw, learning_rate=5e-4, betas=(0.9, 0.98), epsilon=1e-6, weight_decay=0.2)


def train_image_text(
    data: Captioned,
    folder: Path | str,
    *,
    valid: Captioned | None = None,
    model: ImageTextReader | None = None,
    tokenizer: NewTokenizer | TextTokenizer = NewTokenizer("bpe", 8000, lowercase=True),  # noqa: B008 (frozen)
    sizes: Sizes = "desk",
    objective: ImageTextLoss = ImageTextLoss(),  # noqa: B008 (frozen)
    how: CaptionTraining = HOW,
    evaluate: Callable[[ImageTextReader], Mapping[str, float]] | None = None,
) -> ImageTextReader:
    """Learn which captions belong to which pictures; the model is returned, and left in `folder` with its history.

    Without `model` a new CLIP is trained, for pictures of the size that the data have, with a tokenizer that is trained
    on the captions or given. With one, it is trained further, and its own tokenizer is used. At each evaluation every
    held-out picture looks for its caption among all that are held out.
    """
    folder = Path(folder)
    check_folder(folder, how.resume, how.overwrite)
    if valid is None and how.hold_out:
        kept, held = divided(range(len(data)), how.hold_out, key=lambda thing: data.captions[thing][0])
        data, valid = data.some(kept), data.some(held)
    torch.manual_seed(how.settings.seed)
    if model is None:
        texts = list(chain.from_iterable(data.captions))
        cutter = for_captions(chosen_tokenizer(texts, tokenizer, folder, how.resume))
        use = ImageTextReader(new_image_text_model(sizes, cutter, data), cutter, plain_preprocessing(data))
    else:
        use = model
    _check_fit(use.preprocessing, data)
    rows, held_rows = caption_rows(use, data), None if valid is None else caption_rows(use, valid)
    batches = Batches(rows.anew(how.settings.seed, how.augment), how.batching, seed=how.settings.seed)
    (how.reporter or Reporter()).say(
        f"{len(data):,} captioned things to train on, {len(valid) if valid else 0:,} to validate on; "
        f"{use.model.family}, {parameters_of(use.model):,} parameters. Batches in an epoch: {len(batches):,}."
    )

    def leave(where: Path) -> None:
        use.tokenizer.save(where / TOKENIZER_FILE)
        write_preprocessing(use.preprocessing, where)

    return run_training(
        use,
        objective,
        batches,
        how.settings,
        folder,
        about={
            "family": use.model.family,
            "sizes": asdict(use.model.sizes),
            "tokenizer": use.tokenizer.fingerprint(),
            "preprocessing": repr(use.preprocessing),
            "data": {"batching": repr(how.batching), "augment": repr(how.augment)},
        },
        fingerprint=fingerprint_of_captions(data, valid),
        optimizer=how.optimizer or AS_PUBLISHED,
        schedule=how.schedule,
        evaluate=_validation(use, objective, held_rows, evaluate, how.batching),
        flops_per_token=flops_per_counted_token(use.model, objective, typical_batch(rows, how.batching)),
        leave=leave,
        reporter=how.reporter,
        resume=how.resume,
        overwrite=how.overwrite,
    )


def new_image_text_model(sizes: Sizes, tokenizer: TextTokenizer, data: Captioned) -> ImageTextModel:
    """A new CLIP for pictures of this size and this tokenizer."""
    chosen = find_family(FAMILY)
    height, width, channels = data.pixels.shape[1:]
    if height != width:
        raise QkvError(f"A new model reads square pictures, and these are {height} × {width}: resize or crop them.")
    values: dict[str, Any] = named_sizes(chosen, sizes if isinstance(sizes, str) else "desk")
    changes: Mapping[str, Any] = {} if isinstance(sizes, str) else sizes
    if strange := sorted(set(FOLLOWING) & changes.keys()):
        raise QkvError(f"The size {strange[0]} follows from the pictures and the tokenizer: leave it out.")
    values = {**values, "positions": LONGEST_CAPTION, **changes, "image": height, "channels": channels}
    values = {**values, "vocabulary": tokenizer.size, "end": tokenizer.end}
    model: ImageTextModel = build(FAMILY, chosen.sizes(values))
    return model


def plain_preprocessing(data: Captioned) -> Preprocessing:
    """For a new model: the size of the data, and values from -1 to 1."""
    height, width = data.pixels.shape[1:3]
    return Preprocessing(resize=Exactly(height, width), filter="bicubic", normalise=Normalise(1 / 255, HALF, HALF))


def caption_rows(use: ImageTextReader, data: Captioned) -> CaptionRows:
    """Captions cut as the model reads them, beside the pictures."""
    texts = list(chain.from_iterable(data.captions))
    encodings = use.tokenizer.encodings(texts, limit=use.describer.limit())
    return CaptionRows.first(data, use.describer.rows(encodings), use.preprocessing.normalise)


@torch.no_grad()
def vectors_of(model: ImageTextModel, rows: CaptionRows, batching: Batching) -> tuple[Tensor, Tensor]:
    """What the model makes of the pictures and of the captions that the rows take. [n j], [n j]"""
    device = model.log_scale.device
    images: list[Tensor] = [torch.empty(0)] * len(rows)
    texts = list(images)
    for planned in batching.plan(*rows.sizes, np.random.default_rng(0)):
        batch = rows.batch(planned).to(device)
        found = zip(model.of_images(batch.images), model.of_texts(batch.ids, lengths=batch.lengths), strict=True)
        for row, (image, text) in zip(planned.rows.tolist(), found, strict=True):
            images[row], texts[row] = image, text
    return torch.stack(images), torch.stack(texts)


def retrieval_figures(
    model: ImageTextModel, rows: CaptionRows, objective: ImageTextLoss, batching: Batching
) -> dict[str, float]:
    """The loss, and how well pictures and captions find each other among all rows."""
    images, texts = vectors_of(model, rows, batching)
    keys = [tuple(rows.texts.tokens[int(place)]) for place in rows.captions]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    own = torch.tensor([numbers[key] for key in keys], device=images.device)
    total = 0.0
    for some, others, mine in zip(images.split(COMPARED), texts.split(COMPARED), own.split(COMPARED), strict=True):
        same = (mine[:, None] == mine) & ~torch.eye(len(mine), dtype=torch.bool, device=mine.device)
        total += float(objective.of_vectors(some, others, model.log_scale, same)["loss"].total)
    return {"loss": total / len(rows), **score_retrieval(images.float(), texts.float(), keys)}


def fingerprint_of_captions(*parts: Captioned | None) -> str:
    """A short name for these very pictures and captions in this very order."""
    digest = hashlib.sha256()
    for data in parts:
        if data is None:
            continue
        digest.update(repr((data.pixels.shape, list(data.captions), list(data.shown))).encode())
        for first in range(0, len(data.pixels), HASHED_AT_ONCE):
            digest.update(data.pixels[first : first + HASHED_AT_ONCE].tobytes())
    return digest.hexdigest()[:16]


def _validation(
    use: ImageTextReader,
    objective: ImageTextLoss,
    rows: CaptionRows | None,
    evaluate: Callable[[ImageTextReader], Mapping[str, float]] | None,
    batching: Batching,
) -> Callable[[nn.Module], dict[str, float]] | None:
    if rows is None and evaluate is None:
        return None

    def figures(model: nn.Module) -> dict[str, float]:
        measured = {} if rows is None else retrieval_figures(use.model, rows, objective, batching)
        return {**measured, **(evaluate(use) if evaluate is not None else {})}

    return figures


def _check_fit(preprocessing: Preprocessing, data: Captioned) -> None:
    height, width, channels = data.pixels.shape[1:]
    wanted = preprocessing.size
    if len(preprocessing.normalise.mean) != channels or (wanted is not None and wanted != (height, width)):
        raise QkvError(
            f"The pictures are {height} × {width} in {channels} channels, and the model reads "
            f"{wanted} in {len(preprocessing.normalise.mean)}: prepare them with the model's own preprocessing."
        )
