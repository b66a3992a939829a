"""What stands beside a model of sound in its folder: how sounds are prepared for it, and the letters it writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qkv.data.letters import VOCABULARY_FILE, Letters, read_letters
from qkv.data.sound_features import FilterBank, LogMel, SoundFeatures, WaveFeatures
from qkv.data.sound_processor import PROCESSOR_FILE, read_sound_processor, write_sound_processor
from qkv.errors import QkvError
from qkv.models.catalogue import Model
from qkv.models.sound_model import SoundModel
from qkv.parts.frames import STRIDE


def usual_features(model: Model) -> SoundFeatures | None:
    """How sounds are prepared for such a model where its folder does not say; None: it hears none."""
    if isinstance(model, SoundModel):
        # other libraries hide padding only from models that were trained so
        return WaveFeatures(attention_mask=getattr(model.sizes, "frame_norm", "") == "frame")
    if model.family == "ast":
        return FilterBank(bands=model.sizes.bands, frames=model.sizes.frames)
    if model.family == "whisper":
        return LogMel(bands=model.sizes.mels)
    if model.family == "whisper-encoder":
        usual = LogMel(bands=model.sizes.mels)
        return replace(usual, seconds=max(1, model.sizes.source_positions * STRIDE * usual.hop // usual.rate))
    return None


def read_features(folder: Path, model: Model) -> SoundFeatures:
    """How the folder wants sounds prepared for its model; the two must fit."""
    usual = usual_features(model)
    if usual is None:
        raise QkvError(f"{folder} holds a model of the family {model.family}, which hears no sounds.")
    if not (folder / PROCESSOR_FILE).exists():
        return usual
    features = read_sound_processor(folder, type(usual))
    if type(features) is not type(usual):
        raise QkvError(f"{folder / PROCESSOR_FILE} prepares sounds for another kind of model than this {model.family}.")
    if isinstance(features, FilterBank | LogMel) and features.bands != usual.bands:  # type: ignore[union-attr]
        raise QkvError(
            f"{folder / PROCESSOR_FILE} prepares {features.bands} mel bands, and the model reads {usual.bands}."  # type: ignore[union-attr]
        )
    return features


def write_features(folder: Path, model: Model) -> None:
    """Beside a model that hears, if nothing is there yet."""
    features = usual_features(model)
    if features is not None and not (folder / PROCESSOR_FILE).exists():
        write_sound_processor(folder, features)


def letters_of(folder: Path, model: SoundModel) -> Letters:
    """The letters that a model's folder gives it to write."""
    if not (folder / VOCABULARY_FILE).exists():
        raise QkvError(f"{folder} has no {VOCABULARY_FILE}, which names the letters that the model writes.")
    letters = read_letters(folder)
    if len(letters) > model.sizes.vocabulary:
        raise QkvError(
            f"{folder / VOCABULARY_FILE} names {len(letters)} letters, and the model tells {model.sizes.vocabulary} "
            "apart: the two do not belong together."
        )
    # A published model may tell more apart than its vocabulary names.
    spare = tuple(f"<{number}>" for number in range(len(letters), model.sizes.vocabulary))
    return replace(letters, tokens=(*letters.tokens, *spare))
