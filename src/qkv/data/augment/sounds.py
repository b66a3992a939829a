"""Sounds changed at random while a model is trained on them: bands and moments hidden, noise, two sounds made one.

What changes pictures of sounds takes them as a model reads them, normalised; `InTurn` puts several one after the other.

Shapes: b sounds, t samples, m mel bands, n frames, k masks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qkv.data.augment.mixing import Mixed
from qkv.data.augment.steps import beside
from qkv.errors import QkvError


@dataclass(frozen=True, kw_only=True)
class SpecAugment:
    """Stretches of bands and of frames replaced by 0, the mean of what is normalised. [park2019 §2]

    Each is as long as drawn evenly, up to `bands` and up to `frames`. The widths are those that AST was trained with on
    AudioSet, where a picture has 128 bands and 1,024 frames. [gong2021 §3.1]
    """

    bands: int = 48
    frames: int = 192
    masks: int = 1  # of each kind
    most: float = 1.0  # share of the frames that one stretch may cover [park2019 §2, p]

    def __post_init__(self) -> None:
        if min(self.bands, self.frames) < 0 or self.masks < 1 or not 0 < self.most <= 1:
            raise QkvError(f"Masks have widths from 0 on, there is one at least, and a share from 0 to 1, not {self}.")

    def __call__(self, pictures: Tensor, draw: np.random.Generator) -> Tensor:
        """[b 1 m n] → [b 1 m n]"""
        if pictures.ndim != 4:
            raise QkvError(f"Masks hide parts of pictures of sounds [b 1 m n], not of {list(pictures.shape)}.")
        count, _, bands, frames = pictures.shape
        rows = self._hidden(count, bands, min(self.bands, bands), draw, pictures)  # [b m]
        longest = min(self.frames, int(self.most * frames))
        columns = self._hidden(count, frames, longest, draw, pictures)  # [b n]
        return pictures.masked_fill(rows[:, None, :, None] | columns[:, None, None, :], 0.0)

    def _hidden(self, count: int, size: int, longest: int, draw: np.random.Generator, beneath: Tensor) -> Tensor:
        """Which of `size` places are hidden. [b size]"""
        lengths = draw.integers(0, longest + 1, (count, self.masks))
        starts = np.floor(draw.random((count, self.masks)) * (size - lengths + 1)).astype(np.int64)
        first, last = beside(starts, beneath)[..., None], beside(starts + lengths, beneath)[..., None]  # [b k 1]
        places = torch.arange(size, device=beneath.device)
        return ((places >= first) & (places < last)).any(1)


@dataclass(frozen=True)
class Noise:
    """What is added to every value is drawn evenly up to a strength, and that evenly up to `most`. [gong2021 §3.2]"""

    most: float = 0.1

    def __post_init__(self) -> None:
        if self.most < 0:
            raise QkvError(f"Noise is as strong as 0 or more, not {self.most}.")

    def __call__(self, sounds: Tensor, draw: np.random.Generator) -> Tensor:
        """[b …] → [b …]"""
        strengths = draw.random(len(sounds)) * self.most
        noise = beside(draw.random(tuple(sounds.shape), dtype=np.float32), sounds)
        return sounds + noise * beside(strengths, sounds).view(-1, *[1] * (sounds.ndim - 1))


@dataclass(frozen=True)
class Roll:
    """Moved in time by up to `most` frames or samples; what leaves at one end enters at the other. [gong2021 §3.2]"""

    most: int = 10

    def __post_init__(self) -> None:
        if self.most < 0:
            raise QkvError(f"Sounds are moved by 0 frames or more, not by {self.most}.")

    def __call__(self, sounds: Tensor, draw: np.random.Generator) -> Tensor:
        """[b … n] → [b … n]"""
        moves = beside(draw.integers(-self.most, self.most + 1, len(sounds)), sounds)
        size = sounds.shape[-1]
        places = (torch.arange(size, device=sounds.device) - moves[:, None]) % size  # [b n]
        index = places.view(len(sounds), *[1] * (sounds.ndim - 2), size).expand_as(sounds)
        return sounds.gather(-1, index)


@dataclass(frozen=True, kw_only=True)
class WaveMixing:
    """Some waves become λ · their own + (1 − λ) · another's, λ ~ Beta(α, α), each without its mean. [gong2021 §3.1]

    Mixed are samples and not what is made of them: two sounds that are heard together.
    """

    alpha: float = 10.0
    probability: float = 0.5  # that a sound is mixed

    def __post_init__(self) -> None:
        if self.alpha <= 0 or not 0 <= self.probability <= 1:
            raise QkvError(f"Waves are mixed with an α above 0 and a probability from 0 to 1, not {self}.")

    def __call__(self, waves: Tensor, draw: np.random.Generator, count: int | None = None) -> Mixed:
        """Mix some of the first `count` waves with others of them, all by default. [b t]"""
        if waves.ndim != 2:
            raise QkvError(f"Waves are mixed sample by sample [b t], and these are {list(waves.shape)}.")
        count = len(waves) if count is None else count
        partners = np.arange(len(waves))
        partners[:count] = draw.integers(0, count, count)
        shares = draw.beta(self.alpha, self.alpha, len(waves))
        whole = draw.random(len(waves)) >= self.probability
        whole[count:] = True
        shares[whole], partners[whole] = 1.0, np.arange(len(waves))[whole]
        kept = beside(shares, waves)
        level = waves - waves.mean(1, keepdim=True)
        others = beside(partners, waves)
        mixed = kept[:, None] * level + (1 - kept[:, None]) * level[others]
        return Mixed(torch.where(kept[:, None] < 1, mixed, waves), others, kept)
