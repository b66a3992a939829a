"""Training on pictures: a new model, or a loaded one further, learns what they show."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from qkv.api.choices import Sizes, named_sizes
from qkv.api.class_training import ClassTraining, held_out_rows, learn_classes
from qkv.api.runs import check_folder
from qkv.data.augment import Augmentation, Mixing
from qkv.data.image_rows import ImageRows
from qkv.data.patch_hiding import PatchHiding
from qkv.data.plan import Batching, RowCount
from qkv.data.preprocessing import Exactly, Normalise, Preprocessing
from qkv.data.preprocessing_files import write_preprocessing
from qkv.errors import QkvError
from qkv.generate.image_readers import ImageClassifier, ImageReader, PatchGuesser
from qkv.models.catalogue import build, find_family
from qkv.models.head_choice import HeadChoice
from qkv.models.image_model import ImageModel
from qkv.train.objectives.images import HardDistillationLoss, ImageClassificationLoss, SeenAnew
from qkv.train.objectives.masked_patches import MaskedPatchLoss
from qkv.weights.load import with_head

HASHED_AT_ONCE = 4096  # pictures

Used = TypeVar("Used", bound=ImageReader)


@dataclass(frozen=True, kw_only=True)
class ImageTraining(ClassTraining):
    """How pictures are learned."""

    augment: Augmentation | None = None  # how pictures are changed while training
    mixing: Mixing | None = None
    batching: Batching = RowCount(128)  # noqa: RUF009 (frozen)


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
    head for the classes of the data where its own is for others; `at_resolution` brings it to pictures of another size
    first. `head` may be "distilled" for a DeiT, with an `objective` such as `HardDistillationLoss`.
    """
    folder = Path(folder)
    check_folder(folder, how.resume, how.overwrite)
    data, valid = held_out_rows(data, valid, how, "pictures")
    use = _use(data, model, family, sizes, HeadChoice(head, labels=data.names), ImageClassifier, how)
    own = ImageClassificationLoss(normalise=use.preprocessing.normalise, smoothing=how.smoothing)
    return _learn(use, data, valid, folder, how, objective=objective or own, measure=own, evaluate=evaluate)


def pretrain_image_model(
    data: ImageRows,
    folder: Path | str,
    *,
    valid: ImageRows | None = None,
    model: ImageReader | None = None,
    family: str = "vit",
    sizes: Sizes = "desk",
    hiding: PatchHiding = PatchHiding(),  # noqa: B008 (frozen)
    how: ImageTraining = HOW,
    evaluate: Callable[[PatchGuesser], Mapping[str, float]] | None = None,
) -> PatchGuesser:
    """Learn from pictures without labels of what colour hidden patches are [dosovitskiy2021 §B.1.2].

    What comes of it is what `train_image_classifier` may begin with. Labels of the data are not looked at.
    """
    folder = Path(folder)
    check_folder(folder, how.resume, how.overwrite)
    if how.mixing is not None or how.smoothing:
        raise QkvError("Pictures are mixed and targets smoothed where classes are learned: leave both out here.")
    data, valid = held_out_rows(data, valid, how, "pictures")
    use = _use(data, model, family, sizes, HeadChoice("masked"), PatchGuesser, how)
    own = MaskedPatchLoss(normalise=use.preprocessing.normalise, hiding=hiding)
    return _learn(use, data, valid, folder, how, objective=own, measure=own, evaluate=evaluate)


def distillation_from(
    teacher: ImageClassifier, data: ImageRows, student: Preprocessing | None = None, *, smoothing: float = 0.0
) -> HardDistillationLoss:
    """What a DeiT learns by from a teacher, which may read pictures of another size or in other values.

    It must name the classes of the data, in whatever order. `student` is how the student reads; None: as a new model
    does. [touvron2021 eq.3]
    """
    known = teacher.model.head_choice.labels
    if sorted(known) != sorted(data.names):
        raise QkvError(f"The teacher names {', '.join(known)}, and the pictures are of {', '.join(data.names)}.")
    own, theirs = (student or plain_preprocessing(data)).normalise, teacher.preprocessing
    if len(own.mean) != len(theirs.normalise.mean):
        raise QkvError("The teacher and the pictures differ in their channels: one is of colours, the other of greys.")
    order = [known.index(name) for name in data.names]
    seen = SeenAnew(teacher.model, own, theirs.normalise, theirs.size, order)
    return HardDistillationLoss(seen, normalise=own, smoothing=smoothing)


def _use(
    data: ImageRows,
    model: ImageReader | None,
    family: str,
    sizes: Sizes,
    choice: HeadChoice,
    kind: Callable[[ImageModel, Preprocessing], Used],
    how: ImageTraining,
) -> Used:
    """A new model, or the given one with this head, and the way of the pictures into it."""
    torch.manual_seed(how.settings.seed)
    if model is None:
        return kind(new_image_model(family, sizes, choice, data), plain_preprocessing(data))
    _check_fit(model.preprocessing, data)
    network = model.model if model.model.head_choice == choice else with_head(model.model, choice)
    return kind(network, model.preprocessing)


def _learn(
    use: Used,
    data: ImageRows,
    valid: ImageRows | None,
    folder: Path,
    how: ImageTraining,
    *,
    objective: Any,
    measure: Any,
    evaluate: Callable[[Used], Mapping[str, float]] | None,
) -> Used:
    return learn_classes(
        use,
        data,
        folder,
        how,
        objective=objective,
        what="pictures",
        prepared=use.preprocessing,
        fingerprint=fingerprint_of_images(data, valid),
        leave=lambda where: write_preprocessing(use.preprocessing, where),
        held=valid,
        measure=measure,
        evaluate=evaluate,
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
