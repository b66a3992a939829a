"""Training on pictures: a new model, or a loaded one further, learns what they show."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from qkv.api.choices import Sizes, named_sizes
from qkv.api.runs import MakeOptimizer, check_folder, parameters_of, run_training, typical_batch, validation
from qkv.data.augment import Augmentation, Mixing
from qkv.data.batches import Batches
from qkv.data.image_rows import ImageRows, divided_rows
from qkv.data.plan import Batching, RowCount
from qkv.data.preprocessing import Exactly, Normalise, Preprocessing
from qkv.data.preprocessing_files import write_preprocessing
from qkv.errors import QkvError
from qkv.generate.image_readers import ImageClassifier, ImageReader
from qkv.models.catalogue import build, find_family
from qkv.models.head_choice import HeadChoice
from qkv.models.image_model import ImageModel
from qkv.train.flops import flops_per_counted_token
from qkv.train.objectives.images import ImageClassificationLoss
from qkv.train.optimizers import adamw
from qkv.train.reporter import Reporter
from qkv.train.schedules import Linear, Schedule
from qkv.train.settings import TrainSettings
from qkv.weights.load import with_head

SETTINGS = TrainSettings(steps=2000, evaluate_every=200, save_every=200, keep=1)
HASHED_AT_ONCE = 4096  # pictures


@dataclass(frozen=True, kw_only=True)
class ImageTraining:
    """How pictures are learned."""

    augment: Augmentation | None = None  # how pictures are changed while training
    mixing: Mixing | None = None
    smoothing: float = 0.0
    batching: Batching = RowCount(128)  # noqa: RUF009 (frozen)
    settings: TrainSettings = SETTINGS
    optimizer: MakeOptimizer = partial(adamw, learning_rate=1e-3)  # noqa: RUF009 (never changed)
    schedule: Schedule = Linear(warmup=200)  # noqa: RUF009 (frozen)
    hold_out: float = 0.05  # share to validate on where nothing is given for it
    reporter: Reporter | None = None
    resume: bool = False
    overwrite: bool = False


HOW = ImageTraining()


def train_image_classifier(
    data: ImageRows,
    folder: Path | str,
    *,
    valid: ImageRows | None = None,
    model: ImageReader | None = None,
    family: str = "vit",
    sizes: Sizes = "desk",
    head: str = "classification",
    objective: Any = None,
    how: ImageTraining = HOW,
    evaluate: Callable[[ImageClassifier], Mapping[str, float]] | None = None,
) -> ImageClassifier:
    """Learn the class of a picture; the model is returned, and left in `folder` with its history.

    Without `model` a new one of a family is trained, for pictures of the size that the data have. With one, it gets a
    head for the classes of the data where its own is for others. `head` may be "distilled" for a DeiT, with an
    `objective` such as `HardDistillationLoss`.
    """
    folder = Path(folder)
    check_folder(folder, how.resume, how.overwrite)
    if valid is not None and valid.names != data.names:
        raise QkvError(f"The validation classes {', '.join(valid.names)} are not those of the training pictures.")
    if valid is None and how.hold_out:
        data, valid = divided_rows(data, how.hold_out)
    torch.manual_seed(how.settings.seed)
    choice = HeadChoice(head, labels=data.names)
    if model is None:
        use = ImageClassifier(new_image_model(family, sizes, choice, data), plain_preprocessing(data))
    else:
        network = model.model if model.model.head_choice == choice else with_head(model.model, choice)
        use = ImageClassifier(network, model.preprocessing)
        _check_fit(use.preprocessing, data)
    own = ImageClassificationLoss(normalise=use.preprocessing.normalise, smoothing=how.smoothing)
    objective = objective or own
    batches = Batches(data.anew(how.settings.seed, how.augment, how.mixing), how.batching, seed=how.settings.seed)
    (how.reporter or Reporter()).say(
        f"{len(data):,} pictures to train on, {len(valid) if valid else 0:,} to validate on; {use.model.family}, "
        f"{parameters_of(use.model):,} parameters. Batches in an epoch: {len(batches):,}."
    )
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
            "data": {"batching": repr(how.batching), "augment": repr(how.augment), "mixing": repr(how.mixing)},
        },
        fingerprint=fingerprint_of_images(data, valid),
        optimizer=how.optimizer,
        schedule=how.schedule,
        evaluate=validation(use, own, valid, evaluate),
        flops_per_token=flops_per_counted_token(use.model, objective, typical_batch(data, how.batching)),
        leave=lambda where: write_preprocessing(use.preprocessing, where),
        reporter=how.reporter,
        resume=how.resume,
        overwrite=how.overwrite,
    )


def new_image_model(family: str, sizes: Sizes, head: HeadChoice, data: ImageRows) -> ImageModel:
    """A new model for pictures of this size and number of channels."""
    chosen = find_family(family)
    if chosen.reads != "images" or head.kind not in chosen.heads:
        raise QkvError(f"Family {family} does not decide about pictures with a {head.kind} head: take vit or deit.")
    channels, height, width = data.size
    if height != width:
        raise QkvError(f"A new model reads square pictures, and these are {height} × {width}: resize or crop them.")
    values: dict[str, Any] = named_sizes(chosen, sizes if isinstance(sizes, str) else "desk")
    changes: Mapping[str, Any] = {} if isinstance(sizes, str) else sizes
    if strange := sorted({"image", "channels"} & changes.keys()):
        raise QkvError(f"The size {strange[0]} follows from the pictures: leave it out.")
    values = {**values, **changes, "image": height, "channels": channels}
    model: ImageModel = build(family, chosen.sizes(values), head)
    return model


def plain_preprocessing(data: ImageRows) -> Preprocessing:
    """For a new model: the size of the data, and values from -1 to 1."""
    channels, height, width = data.size
    half = (0.5,) * channels
    return Preprocessing(resize=Exactly(height, width), filter="bicubic", normalise=Normalise(1 / 255, half, half))


def fingerprint_of_images(*parts: ImageRows | None) -> str:
    """A short name for these very pictures and labels in this very order."""
    digest = hashlib.sha256()
    for rows in parts:
        if rows is None:
            continue
        digest.update(repr((rows.pixels.shape, rows.names)).encode() + rows.labels.tobytes())
        for first in range(0, len(rows), HASHED_AT_ONCE):
            digest.update(rows.pixels[first : first + HASHED_AT_ONCE].tobytes())
    return digest.hexdigest()[:16]


def _check_fit(preprocessing: Preprocessing, data: ImageRows) -> None:
    channels, height, width = data.size
    wanted = preprocessing.size
    if len(preprocessing.normalise.mean) != channels or (wanted is not None and wanted != (height, width)):
        raise QkvError(
            f"The pictures are {height} × {width} in {channels} channels, and the model reads "
            f"{wanted} in {len(preprocessing.normalise.mean)}: make the rows with the model's own preprocessing."
        )
