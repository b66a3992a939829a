"""Training on sounds: a new model, or a loaded one further, learns what is heard."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qkv.api.choices import Sizes, named_sizes
from qkv.api.class_training import ClassTraining, held_out_rows, learn_classes
from qkv.api.runs import check_folder
from qkv.data.augment import Augmentation, WaveMixing
from qkv.data.labelled_sounds import LabelledSounds, measured_bank
from qkv.data.plan import Batching, RowCount
from qkv.data.sound_features import FilterBank, SoundFeatures, WaveFeatures
from qkv.data.sound_processor import write_sound_processor
from qkv.errors import QkvError
from qkv.generate.image_readers import ImageReader
from qkv.generate.sound_readers import SoundClassifier, SoundReader
from qkv.models.catalogue import build, find_family
from qkv.models.head_choice import HeadChoice
from qkv.train.objectives.sound_labels import SoundLabelLoss
from qkv.weights.from_pictures import begin_with_pictures
from qkv.weights.load import with_head

FAMILIES = ("ast", "wav2vec2")
LONGEST = 10.0  # seconds that are learned from at once, where nobody says
RATE = 16000  # of the sounds that new models hear
FOLLOWING = ("frames",)  # sizes that follow from the sounds


@dataclass(frozen=True, kw_only=True)
class SoundTraining(ClassTraining):
    """How sounds are learned.

    `augment` changes them as the model reads them, and `mixing` as they are heard. Without mixing, the pictures that an
    AST reads are made once; with it, anew for each batch, on the device.
    """

    augment: Augmentation | None = None
    mixing: WaveMixing | None = None
    batching: Batching = RowCount(48)  # noqa: RUF009 (frozen)


HOW = SoundTraining()


def train_sound_classifier(
    data: LabelledSounds,
    folder: Path | str,
    *,
    valid: LabelledSounds | None = None,
    model: SoundReader | None = None,
    start: ImageReader | None = None,
    family: str = "ast",
    sizes: Sizes = "desk",
    seconds: float | None = None,
    how: SoundTraining = HOW,
    evaluate: Callable[[SoundClassifier], Mapping[str, float]] | None = None,
) -> SoundClassifier:
    """Learn the class of a sound; the model is returned, and left in `folder` with its history.

    The data are waves of the model's rate (16 kHz for a new one), which are prepared here. Without `model` a new one of
    a family is trained, "ast" or "wav2vec2", on `seconds` at once: by default as many as the longest sound has, up to
    ten; an AST never hears more at once from then on. It may `start` with the weights of a ViT or a DeiT
    [gong2021 §2.2]. With a `model`, that one is trained further, with a head for the classes of the data where its own
    is for others. Of a sound that is longer than what is heard at once, another stretch is learned from in each epoch;
    when it is validated, all of them count.
    """
    folder = Path(folder)
    check_folder(folder, how.resume, how.overwrite)
    data, valid = held_out_rows(data, valid, how, "sounds")
    torch.manual_seed(how.settings.seed)
    choice = HeadChoice("classification", labels=data.names)
    if model is None:
        use = new_sound_classifier(family, sizes, choice, data, seconds)
        if start is not None:
            begin_with_pictures(use.model, start.model)
    else:
        if start is not None or (seconds is not None and isinstance(model.features, FilterBank)):
            raise QkvError("What to start with, and how much an AST hears at once, is asked of a new model only.")
        network = model.model if model.model.head_choice == choice else with_head(model.model, choice)
        use = SoundClassifier(network, model.features)
    _check_fit(use, data, valid)
    parts = None if valid is None else valid.divided(use.size, max(use.shortest, use.size // 2)).made(use.features)
    fingerprint = fingerprint_of_sounds(data, valid)
    pictured = isinstance(use.features, FilterBank) and how.mixing is None
    rows = windowed(data, use, pictured, seconds)
    return learn_classes(
        use,
        rows,
        folder,
        how,
        objective=SoundLabelLoss(features=None if pictured else use.features, smoothing=how.smoothing),
        what="sounds",
        prepared=use.features,
        fingerprint=fingerprint,
        leave=lambda where: write_sound_processor(where, use.features),
        held=parts,
        things_held=0 if valid is None else len(valid),
        measure=SoundLabelLoss(smoothing=how.smoothing),
        evaluate=evaluate,
    )


def windowed(data: LabelledSounds, use: SoundReader, pictured: bool, seconds: float | None) -> LabelledSounds:
    """Rows of which a window is taken in each epoch: of their waves, or of pictures that are made here, once."""
    if pictured:
        assert isinstance(use.features, FilterBank)
        return replace(data.made(use.features), window=use.features.frames)
    if isinstance(use.features, WaveFeatures):
        samples = round((LONGEST if seconds is None else seconds) * use.features.rate)
        return replace(data, window=min(use.size, max(use.shortest, samples)))
    return replace(data, window=use.size)


def new_sound_classifier(
    family: str, sizes: Sizes, head: HeadChoice, data: LabelledSounds, seconds: float | None = None
) -> SoundClassifier:
    """A new model, and the way of sounds into it: normalised as these sounds are."""
    if family not in FAMILIES:
        raise QkvError(f"Family {family} does not decide about sounds: take {' or '.join(FAMILIES)}.")
    chosen = find_family(family)
    values: dict[str, Any] = named_sizes(chosen, sizes if isinstance(sizes, str) else "desk")
    changes: Mapping[str, Any] = {} if isinstance(sizes, str) else sizes
    if strange := sorted(set(FOLLOWING) & changes.keys()):
        raise QkvError(f"The size {strange[0]} follows from how many seconds are heard at once: leave it out.")
    values = {**values, **changes}
    features: SoundFeatures = WaveFeatures()
    if family == "ast":
        longest = max(len(wave) for wave in data.waves) / RATE
        window = min(longest, LONGEST) if seconds is None else seconds
        frames = FilterBank.count(round(window * RATE))
        if frames < int(values.get("patch", 16)):
            raise QkvError(f"A model that hears {window:g} seconds at once sees less than one patch: give it more.")
        features = measured_bank(data, int(values["bands"]), frames)
        values["frames"] = frames
    network = build(family, chosen.sizes(values), head)
    return SoundClassifier(network, features)


def fingerprint_of_sounds(*parts: LabelledSounds | None) -> str:
    """A short name for these very sounds and labels in this very order."""
    digest = hashlib.sha256()
    for rows in parts:
        if rows is None:
            continue
        digest.update(repr(rows.names).encode() + rows.labels.tobytes())
        for wave in rows.waves:
            digest.update(repr(len(wave)).encode() + wave.numpy().tobytes())
    return digest.hexdigest()[:16]


def _check_fit(use: SoundReader, *parts: LabelledSounds | None) -> None:
    for rows in parts:
        if rows is None:
            continue
        if any(wave.ndim != 1 for wave in rows.waves):
            raise QkvError("Sounds to learn from are waves [t]; they are prepared for the model here.")
        short = min(len(wave) for wave in rows.waves)
        if short < use.shortest:
            raise QkvError(
                f"A sound of {short} samples is shorter than what the model hears as one frame, {use.shortest}: "
                "leave it out."
            )
