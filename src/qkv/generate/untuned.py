"""A model of sound that has learned from sound alone, and waits for a task."""

from __future__ import annotations

from pathlib import Path

import torch

from qkv.data.sound_features import WaveFeatures
from qkv.data.sound_processor import write_sound_processor
from qkv.errors import QkvError
from qkv.generate.use import ModelUse
from qkv.models.sound_model import SoundModel
from qkv.weights.hub import local_folder
from qkv.weights.load import load_model
from qkv.weights.save import save_model
from qkv.weights.sound_folder import read_features


class UntunedSound(ModelUse):
    """The model, and how sounds are prepared for it."""

    model: SoundModel

    def __init__(self, model: SoundModel, features: WaveFeatures) -> None:
        self.model, self.features = model, features

    @classmethod
    def load(cls, folder: Path | str, device: str | torch.device = "cpu") -> UntunedSound:
        """Any model of samples, whatever its head: one that has a task can learn another."""
        folder = local_folder(folder)
        model = load_model(folder, device)
        if not isinstance(model, SoundModel):
            raise QkvError(f"{folder} holds no model of samples of sound: give one such as wav2vec 2.0.")
        features = read_features(folder, model)
        assert isinstance(features, WaveFeatures)
        return cls(model, features)

    def save(self, folder: Path | str) -> None:
        save_model(self.model, Path(folder))
        write_sound_processor(Path(folder), self.features)
