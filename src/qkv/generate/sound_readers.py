"""Models of sound with the way of a sound into them: sounds in, and for each what the head says of it.

A sound that is longer than a model hears at once is heard in windows, one after the other, and the answer is the mean
of theirs, each counted by its length.

Shapes: b windows of a batch, n frames, d width of the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.sound import Sound
from qkv.data.sound_features import Features, SoundFeatures, WaveFeatures, join_waves
from qkv.data.sound_processor import write_sound_processor
from qkv.data.spectra import FBANK_FRAME
from qkv.errors import QkvError
from qkv.generate.listen import Listener, Spoken, sound_stretches
from qkv.generate.readers import Labelled
from qkv.generate.use import ModelUse, answered
from qkv.models.image_model import ImageModel
from qkv.models.sound_model import SoundModel
from qkv.weights.save import save_model
from qkv.weights.sound_folder import letters_of, read_features, usual_features

WINDOW = 30.0  # seconds that a model of samples hears at once
BATCH_WINDOWS = 8


class SoundReader(ModelUse):
    """What all uses of a model of sound share; each use is a subclass for one kind of head."""

    def __init__(self, model: SoundModel | ImageModel, features: SoundFeatures, *, window: float = WINDOW) -> None:
        """`window` is seconds; what reads pictures of sound hears as much as a picture shows."""
        self.check_head(model)
        if type(features) is not type(usual_features(model)):
            raise QkvError("The model hears samples, or pictures of them, and its features are of the other kind.")
        self.model, self.features = model, features
        self.shortest = model.frames.shortest if isinstance(model, SoundModel) else FBANK_FRAME
        self.size = round(window * features.rate) if isinstance(features, WaveFeatures) else features.samples
        if self.size < self.shortest:
            raise QkvError(f"A window of {window} seconds is shorter than what the model hears as one frame.")

    def save(self, folder: Path | str) -> None:
        save_model(self.model, Path(folder))
        write_sound_processor(Path(folder), self.features)

    def answers(self, sounds: Sequence[Spoken], rows: int = BATCH_WINDOWS) -> list[list[tuple[int, Tensor]]]:
        """What the head says of each window of each sound, and the window's samples. `rows` are heard together."""
        if isinstance(sounds, str | bytes | Path | Sound):
            raise QkvError("Give a list of sounds, not a single one: put the one sound into brackets.")
        found: list[list[tuple[int, Tensor]]] = [[] for _ in sounds]
        queue = (
            (number, window.samples)
            for number, sound in enumerate(sounds)
            for window in sound_stretches(sound, self.features.rate, self.size)
        )
        windows = iter(lambda: list(islice(queue, rows)), [])
        batches = ((some, self.prepared([samples for _, samples in some])) for some in windows)
        for (number, samples), answer in answered(self.model, batches, self._hear, self._rows):
            found[number].append((len(samples), answer))
        return found

    def prepared(self, waves: Sequence[Tensor]) -> Features:
        """Waves [t] as the model reads them; those of less than a frame are filled up with silence."""
        batch, lengths = join_waves(waves)
        short = max(0, self.shortest - batch.shape[1])
        if isinstance(self.features, WaveFeatures):
            made = self.features(batch, lengths)
            return Features(F.pad(made.values, (0, short)), lengths.clamp(min=self.shortest))
        return self.features(F.pad(batch, (0, short)), lengths.clamp(min=self.shortest))

    def _hear(self, given: Features) -> Tensor:
        device = next(self.model.parameters()).device
        values = given.values.to(device, non_blocking=device.type == "cuda")
        if isinstance(self.model, SoundModel):
            output: Tensor = self.model(values, lengths=given.lengths)
            return output
        output = self.model(values)
        return output if isinstance(output, Tensor) else output[0]

    def _rows(self, output: Tensor, given: Features) -> list[Tensor]:
        """What was said of each window, of its own frames alone."""
        if not isinstance(self.model, SoundModel):
            return list(output)
        counts = self.model.frames.frames_of(given.lengths).tolist()
        return [row[:count] if row.ndim == 2 else row for row, count in zip(output, counts, strict=True)]


class SoundClassifier(SoundReader):
    """One label a sound."""

    kinds: ClassVar = ("classification",)

    def run(self, sounds: Sequence[Spoken], *, rows: int = BATCH_WINDOWS) -> list[Labelled]:
        """The label of each sound, and how likely each label is: files, sounds, or samples of the model's rate."""
        labels = self.model.head_choice.labels
        found = []
        for parts in self.answers(sounds, rows):
            shares = _mean([(length, logits.softmax(-1)) for length, logits in parts])
            found.append(Labelled.of(labels, shares))
        return found


class SoundEncoder(SoundReader):
    """One vector a sound."""

    kinds: ClassVar = ("embedding",)

    def run(self, sounds: Sequence[Spoken], *, rows: int = BATCH_WINDOWS) -> Tensor:
        """[sounds d]"""
        vectors = [_mean(parts) for parts in self.answers(sounds, rows)]
        stacked = torch.stack(vectors) if vectors else torch.empty(0, 0)
        return F.normalize(stacked, dim=-1) if self.model.head_choice.unit_length else stacked

    def similarities(self, first: Sequence[Spoken], second: Sequence[Spoken]) -> Tensor:
        """The cosine of the angle between each of the first sounds and each of the second. [first second]"""
        normed = [F.normalize(self.run(sounds), dim=-1) for sounds in (first, second)]
        return normed[0] @ normed[1].T


class SoundStateReader(SoundReader):
    """The stream itself, or a label for each frame, for those who build on it."""

    kinds: ClassVar = ("states", "pooled", "tokens")

    def run(self, sounds: Sequence[Spoken], *, rows: int = BATCH_WINDOWS) -> list[Tensor]:
        """What the head says of each frame, window after window. [n d] each"""
        return [torch.cat([answer for _, answer in parts]) for parts in self.answers(sounds, rows)]


def _mean(parts: Sequence[tuple[int, Tensor]]) -> Tensor:
    """Of several windows, each by its length."""
    weights = torch.tensor([float(length) for length, _ in parts])
    return torch.einsum("w,w...->...", weights / weights.sum(), torch.stack([answer for _, answer in parts]))


SOUND_USES: dict[str, type[SoundReader]] = {
    kind: use for use in (SoundClassifier, SoundEncoder, SoundStateReader) for kind in use.kinds
}


def use_of_sounds(model: SoundModel | ImageModel, folder: Path) -> SoundReader | Listener:
    """What a model that hears is used by, with what stands beside it in its folder."""
    features = read_features(folder, model)
    kind = model.head_choice.kind
    if isinstance(model, SoundModel) and kind == "ctc":
        assert isinstance(features, WaveFeatures)
        return Listener(model, letters_of(folder, model), features)
    if kind not in SOUND_USES:
        raise QkvError(f"A model with a {kind} head is to be trained further, not run: give it another head.")
    return SOUND_USES[kind](model, features)
