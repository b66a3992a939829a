"""`preprocessor_config.json` of published sound models, read into a frozen value and written from it.

A key is known or it is an error: what is not known could change what a model is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qkv.data.columns import is_number
from qkv.data.sound_features import FilterBank, LogMel, SoundFeatures, WaveFeatures
from qkv.data.spectra import FBANK_RATE, log_mel_filters
from qkv.errors import QkvError
from qkv.files import read_json, write_json

PROCESSOR_FILE = "preprocessor_config.json"


@dataclass(frozen=True)
class _Published:
    """How one preparation is written: its own keys by our names, and keys that must have one value."""

    name: str
    makes: type
    keys: Mapping[str, tuple[str, type]]  # theirs -> ours and its type
    fixed: Mapping[str, Any]


_KINDS = (
    _Published(
        "Wav2Vec2FeatureExtractor",
        WaveFeatures,
        {
            "sampling_rate": ("rate", int),
            "do_normalize": ("normalise", bool),
            "return_attention_mask": ("attention_mask", bool),
        },
        {"feature_size": 1, "padding_side": "right", "padding_value": 0.0},
    ),
    _Published(
        "ASTFeatureExtractor",
        FilterBank,
        {
            "num_mel_bins": ("bands", int),
            "max_length": ("frames", int),
            "do_normalize": ("normalise", bool),
            "mean": ("mean", float),
            "std": ("deviation", float),
            "return_attention_mask": ("attention_mask", bool),
        },
        {"feature_size": 1, "padding_side": "right", "padding_value": 0.0, "sampling_rate": FBANK_RATE},
    ),
    _Published(
        "WhisperFeatureExtractor",
        LogMel,
        {
            "sampling_rate": ("rate", int),
            "feature_size": ("bands", int),
            "n_fft": ("fft", int),
            "hop_length": ("hop", int),
            "chunk_length": ("seconds", int),
            "return_attention_mask": ("attention_mask", bool),
        },
        {"padding_side": "right", "padding_value": 0.0, "dither": 0.0},
    ),
)
_FOLLOWS = ("n_samples", "nb_max_frames", "mel_filters")  # from the rest, in older files of Whisper
_OTHER = ("feature_extractor_type", "processor_class")


def read_sound_processor(folder: Path, usual: type | None = None) -> SoundFeatures:
    """The preparation that a folder asks for; where it names none, as old folders do, it is the `usual` one."""
    file = Path(folder) / PROCESSOR_FILE
    config = read_json(file)
    kinds = {kind.name: kind for kind in _KINDS}
    unnamed = next((kind.name for kind in _KINDS if kind.makes is usual), None)
    named = str(config.get("feature_extractor_type", unnamed)) if isinstance(config, dict) else ""
    if named not in kinds:
        raise QkvError(f'{file} has the "feature_extractor_type" {named!r}; qkv knows {", ".join(kinds)}.')
    kind = kinds[named]
    for key, meant in kind.fixed.items():
        if config.get(key, meant) != meant:
            raise QkvError(f"{file} asks for {key} {config[key]!r}; {kind.name} here has {meant!r}.")
    if unknown := sorted(config.keys() - {*kind.keys, *kind.fixed, *_FOLLOWS, *_OTHER}):
        raise QkvError(f"{file} has keys that could change what a model is given: {', '.join(unknown)}.")
    given = {ours: _value(file, key, config[key], meant) for key, (ours, meant) in kind.keys.items() if key in config}
    processor: SoundFeatures = kind.makes(**given)
    _check_what_follows(file, config, processor)
    return processor


def write_sound_processor(folder: Path, processor: SoundFeatures) -> None:
    """So that the other library prepares sounds as we do."""
    (kind,) = (kind for kind in _KINDS if isinstance(processor, kind.makes))
    own = {key: getattr(processor, ours) for key, (ours, _) in kind.keys.items()}
    write_json(Path(folder) / PROCESSOR_FILE, {"feature_extractor_type": kind.name, **kind.fixed, **own})


def _value(file: Path, key: str, value: Any, meant: type) -> Any:
    if meant is float and is_number(value):
        value = float(value)
    fits = type(value) is meant and (meant is bool or is_number(value))
    if fits and (meant is int or key == "std"):
        fits = 0 < value <= 10**6
    if not fits:
        must = {int: "a whole number above 0", float: "a number (a deviation above 0)", bool: "true or false"}[meant]
        raise QkvError(f"In {file}, {key} must be {must}, but is {value!r}.")
    return value


def _check_what_follows(file: Path, config: Mapping[str, Any], processor: SoundFeatures) -> None:
    """Numbers that a file repeats must be those that follow from the rest."""
    present = [key for key in _FOLLOWS if key in config]
    if present and not isinstance(processor, LogMel):
        raise QkvError(f"{file} has keys that its preparation does not: {', '.join(present)}.")
    if isinstance(processor, LogMel):
        follows = {"n_samples": processor.samples, "nb_max_frames": processor.samples // processor.hop}
        for key, meant in follows.items():
            if config.get(key, meant) != meant:
                raise QkvError(f"{file} has {key} {config[key]!r}, where {meant} follows from the rest.")
        if "mel_filters" in config:
            expected = log_mel_filters(processor.bands, processor.rate, processor.fft)
            try:
                given = torch.tensor(config["mel_filters"], dtype=torch.float64)
            except (TypeError, ValueError, RuntimeError):
                given = torch.zeros(0)
            given = given.T if given.shape == expected.T.shape else given
            if given.shape != expected.shape or not torch.allclose(given, expected, atol=1e-5, rtol=0):
                raise QkvError(f"{file} has other mel_filters than follow from the rest.")
