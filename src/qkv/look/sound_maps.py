"""What a model of sound listens to, as plain arrays: over the spectrum, over time, or for each token it writes.

Shapes: l layers, h heads, q queries, k keys, m mel bands, n frames of the spectrum, r rows and c columns of patches,
t written tokens, s slots in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from qkv.data.resampling import resample
from qkv.data.sound import Sound
from qkv.data.sound_features import FilterBank
from qkv.data.spectra import FBANK_FRAME, FBANK_HOP, FBANK_RATE, fbank, kaldi_mel, slaney_mel
from qkv.errors import QkvError
from qkv.generate.alignment import ChosenHeads, default_heads
from qkv.generate.hearing import Hearing
from qkv.generate.listen import Listener, Spoken, sound_stretches
from qkv.generate.sound_readers import SoundClassifier, SoundReader
from qkv.generate.spoken_words import Word
from qkv.generate.transcribe import Transcriber
from qkv.generate.use import at_rest
from qkv.look.colour import LEVELS, SCREEN
from qkv.look.picture_maps import Floats, PictureRecord, kept_attention, likeliest, rolled_out
from qkv.models.frame_model import FrameModel
from qkv.models.image_model import ImageModel
from qkv.models.sound_model import SoundModel
from qkv.parts.attention.visibility import NotPadding, Tokens
from qkv.parts.frames import STRIDE

LOOKED_AT = 10.0  # seconds of a sound whose frames all see each other: maps grow with the square
BANDS = 80  # of the spectrum that is shown where the model reads none
DARKEST, BRIGHTEST = 5.0, 99.8  # percentiles of the spectrum that become the ends of its colours


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A stretch of sound as it is shown, low bands first."""

    values: Floats  # [m n]
    seconds: float  # that it shows
    sounding: float  # seconds of it that are no filling
    mel: str = "kaldi"  # the scale of the bands: kaldi, from 20 Hz, or slaney, from 0; both up to 8,000

    def picture(self) -> Image.Image:
        """High above low, louder brighter; a pixel a value."""
        low, high = np.percentile(self.values, (DARKEST, BRIGHTEST))
        steps = (self.values - low) / max(float(high - low), 1e-6) * (LEVELS - 1)
        ramp = np.array(SCREEN, np.uint8)
        return Image.fromarray(ramp[np.rint(steps[::-1].clip(0, LEVELS - 1)).astype(int)])

    def height_of(self, hertz: float) -> float:
        """Where a frequency stands: 0 at the foot, 1 at the top."""
        scale, first = (kaldi_mel, 20.0) if self.mel == "kaldi" else (slaney_mel, 0.0)
        at, low, high = scale(torch.tensor([hertz, first, 8000.0])).tolist()
        return float((at - low) / (high - low))


@dataclass(frozen=True, eq=False)
class SpectrumRecord(PictureRecord):
    """A sound that was read as a picture: patches of the spectrum are what is looked at."""

    spectrum: Spectrum

    def _on_grid(self, weights: Floats) -> Floats:
        """As of a picture, but the lowest bands, which come first, are below; and all tokens of the prefix decide."""
        rows = weights[..., : self.prefix, :].mean(-2) if self.prefix else weights.mean(-2)
        on_patches = rows[..., self.prefix :].reshape(*weights.shape[:-2], *self.grid)
        return on_patches[..., ::-1, :]


@dataclass(frozen=True, eq=False)
class FrameRecord:
    """A sound that was read as frames in time, each of which sees all others."""

    name: str
    said: str
    spectrum: Spectrum
    weights: Floats  # [l h s s]
    words: tuple[Word, ...] = ()  # where the model writes any

    def heads(self, layer: int) -> Floats:
        """How much each frame is looked at by all frames on average, head by head. [h s]"""
        looked: Floats = self.weights[layer].mean(-2)
        return looked

    def rollout(self) -> Floats:
        """How much of each frame has flowed into all of them on average, through all layers. [s]"""
        flow: Floats = rolled_out(self.weights).mean(0)
        return flow


@dataclass(frozen=True, eq=False)
class SpokenRecord:
    """A sound that was written down: where each token looked while it was written."""

    name: str
    said: str
    spectrum: Spectrum
    tokens: tuple[str, ...]
    weights: Floats  # [l h t s]
    following: tuple[tuple[int, int], ...]  # layers and heads that follow the speaker, by which words get their times
    words: tuple[Word, ...]

    def alignment(self) -> Floats:
        """The mean of the heads that follow the speaker. [t s]"""
        mean: Floats = np.mean([self.weights[layer, head] for layer, head in self.following], 0)
        return mean

    def heads(self, layer: int) -> Floats:
        """[h t s]"""
        return self.weights[layer]


Record = SpectrumRecord | FrameRecord | SpokenRecord


def record_sound(use: SoundReader | Listener | Transcriber, sound: Spoken) -> Record:
    """Run a model once over the first stretch of a sound, as long as it hears at once, and keep every attention map.

    Of models whose frames all see each other the stretch is ten seconds.
    """
    name = str(sound) if isinstance(sound, Path | str) else "sound"
    if isinstance(use, Transcriber):
        return _spoken(use, sound, name)
    if isinstance(use.model, FrameModel):
        raise QkvError("Of Whisper's encoder alone nothing is drawn, its slots being too many: look at a Whisper.")
    if isinstance(use.model, ImageModel):
        assert isinstance(use, SoundReader)
        return _pictured(use, sound, name)
    return _framed(use, sound, name)


def _pictured(use: SoundReader, sound: Spoken, name: str) -> SpectrumRecord:
    samples = _first(sound, use.features.rate, use.size)
    prepared = use.prepared([samples])
    values, whole = prepared.values, int(prepared.lengths[0])
    model, features = use.model, use.features
    assert isinstance(model, ImageModel)
    assert isinstance(features, FilterBank)
    weights, answer = kept_attention(model, values)
    frame = FBANK_HOP / features.rate  # seconds from one to the next
    shown = Spectrum(values[0, 0].numpy(), features.frames * frame, whole * frame)
    grid, stride = model.embed.grid(values), model.embed.stride
    said = _said(use, answer)
    return SpectrumRecord(name, shown.picture(), said, weights, grid, len(model.embed.prefix), stride, shown)


def _framed(use: SoundReader | Listener, sound: Spoken, name: str) -> FrameRecord:
    model = use.model
    assert isinstance(model, SoundModel)
    rate = use.features.rate
    samples = _first(sound, rate, round(LOOKED_AT * rate))
    if len(samples) < model.frames.shortest:
        raise QkvError(f"{name} is shorter than one frame of the model: there is nothing to look at.")
    waves = use.features(samples[None]).values
    weights, answer = kept_attention(model, waves)
    words: tuple[Word, ...] = ()
    if isinstance(use, Listener):
        heard = use.run([samples])[0]
        said, words = heard.text, heard.words
    else:
        said = _said(use, answer)
    return FrameRecord(name, said, _shown(samples, rate), weights, words)


def _spoken(use: Transcriber, sound: Spoken, name: str) -> SpokenRecord:
    features, tokens, model = use.features, use.tokens, use.model
    samples = _first(sound, features.rate, features.samples)
    transcript = use.run([Sound(samples, features.rate)], Hearing(words=True))[0]
    text = [token for segment in transcript.segments for token in segment.ids if token < tokens.end]
    if not text:
        raise QkvError(f"The model hears no word in {name}, so there is nothing to look at.")
    opening = tokens.opening(transcript.language, "transcribe", timestamps=False)
    text = text[: model.sizes.target_positions - len(opening)]
    slots = max(1, len(samples) // features.hop // STRIDE)
    every = [(layer, head) for layer in range(model.sizes.decoder_layers) for head in range(model.sizes.decoder_heads)]
    place = next(model.parameters())
    frames = features(samples[None]).values
    ledger = ChosenHeads(model, every)
    ids = torch.tensor([[*opening, *text]], device=place.device)
    with at_rest(model):
        memory = model.encode(frames.to(place.device, place.dtype))
        model.decode_states(ids, memory, Tokens(ids.shape[1]), NotPadding(), ledger=ledger)
    kept = torch.stack(ledger.kept)[:, len(opening) - 1 : -1, :slots]  # [l·h t s]: a token is written by the one before
    weights = kept.unflatten(0, (model.sizes.decoder_layers, -1)).numpy()
    seconds = slots * use.step
    spectrum = Spectrum(frames[0, :, : slots * STRIDE].numpy(), seconds, seconds, mel="slaney")
    pieces = tuple(use.tokenizer.decode([token]) for token in text)
    following = tuple(tokens.alignment_heads or default_heads(model))
    return SpokenRecord(name, transcript.text, spectrum, pieces, weights, following, transcript.words)


def _first(sound: Spoken, rate: int, size: int) -> Tensor:
    return next(iter(sound_stretches(sound, rate, size))).samples


def _said(use: SoundReader | Listener, answer: Tensor) -> str:
    return likeliest(use.model.head_choice.labels, answer[0]) if isinstance(use, SoundClassifier) else ""


def _shown(samples: Tensor, rate: int) -> Spectrum:
    """The filter bank of samples, for the eye alone."""
    seconds = len(samples) / rate
    heard = samples if rate == FBANK_RATE else resample(samples, rate, FBANK_RATE)
    heard = F.pad(heard, (0, max(0, FBANK_FRAME - len(heard))))
    return Spectrum(fbank(heard[None], BANDS)[0].T.numpy(), seconds, seconds)
