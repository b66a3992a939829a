"""What sound models read instead of samples, frame for frame as their publishers prepared it.

A preparation is a frozen value that is called with waves [b t] of its own rate and the `lengths` [b] of rows padded
with silence on the right; it gives `Features`. In a published folder it is the file `preprocessor_config.json`.

Shapes: b rows, t samples, n frames, m mel bands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.spectra import FBANK_FRAME, FBANK_HOP, FBANK_RATE, fbank, log_mel
from qkv.errors import QkvError


@dataclass(frozen=True, eq=False)
class Features:
    values: Tensor
    lengths: Tensor  # [b] frames, or samples, that are not padding


def join_waves(waves: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Waves [t] of any lengths as one batch: [b t], silence after the shorter ones, and their lengths [b]."""
    lengths = torch.tensor([len(wave) for wave in waves])
    return torch.nn.utils.rnn.pad_sequence(list(waves), batch_first=True), lengths


def _checked(waves: Tensor, lengths: Tensor | None, shortest: int) -> Tensor:
    """The lengths of all rows; samples that are no numbers and rows that are too short are errors.

    That is asked where samples are read, on the CPU.
    """
    if waves.ndim != 2:
        raise QkvError(f"Sounds come as rows of samples [b t], not with the shape {list(waves.shape)}.")
    if lengths is None:
        lengths = torch.full((len(waves),), waves.shape[1], device=waves.device)
    if waves.device.type != "cpu" or lengths.device.type != "cpu":
        return lengths.to(waves.device)  # looking would make the device wait
    if len(lengths) and (int(lengths.min()) < shortest or int(lengths.max()) > waves.shape[1]):
        raise QkvError(
            f"A sound of {int(lengths.min())} samples is too short or longer than its row: there must be from "
            f"{shortest} to {waves.shape[1]}."
        )
    if not waves.isfinite().all():
        raise QkvError("A sound holds samples that are no numbers.")
    return lengths


def _real(lengths: Tensor, size: int) -> Tensor:
    """[b size], True where a slot is not padding."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


@dataclass(frozen=True, kw_only=True)
class WaveFeatures:
    """The samples themselves, each row with mean 0 and variance 1, as wav2vec 2.0 reads them. [baevski2020 §2]

    DIFFERS: padding is no part of a row's mean and variance, with `attention_mask` and without.
    """

    rate: int = 16000
    normalise: bool = True
    attention_mask: bool = False  # whether other libraries hide padding from this model; here it is always hidden

    def __call__(self, waves: Tensor, lengths: Tensor | None = None) -> Features:
        """[b t] → [b t]"""
        lengths = _checked(waves, lengths, 1)
        real = _real(lengths, waves.shape[1])
        if not self.normalise:
            return Features(waves.float().masked_fill(~real, 0.0), lengths)
        wide = waves.double().masked_fill(~real, 0.0)
        count = lengths[:, None].double()
        centred = (wide - wide.sum(1, keepdim=True) / count).masked_fill(~real, 0.0)
        variance = centred.square().sum(1, keepdim=True) / count
        return Features((centred / (variance + 1e-7).sqrt()).float(), lengths)


@dataclass(frozen=True, kw_only=True)
class FilterBank:
    """Kaldi's log mel filter bank as a picture of one channel, cut or filled to `frames`. [gong2021 §2.1]

    Filling is 0 before the whole picture is normalised: (x - mean) / (2 · deviation).
    """

    bands: int = 128
    frames: int = 1024
    normalise: bool = True
    mean: float = -4.2677393  # of AudioSet
    deviation: float = 4.5689974
    attention_mask: bool = False  # as `WaveFeatures` has it; the model reads the filling too

    @property
    def rate(self) -> int:
        return FBANK_RATE

    @property
    def samples(self) -> int:
        """What a full picture shows."""
        return FBANK_FRAME + FBANK_HOP * (self.frames - 1)

    @staticmethod
    def count(samples: int) -> int:
        """The whole frames of so many samples."""
        return (samples - FBANK_FRAME) // FBANK_HOP + 1

    def __call__(self, waves: Tensor, lengths: Tensor | None = None) -> Features:
        """[b t] → [b 1 m n]"""
        lengths = _checked(waves, lengths, FBANK_FRAME)
        bank = fbank(waves[:, : self.samples], self.bands)  # [b n m]
        whole = ((lengths - FBANK_FRAME) // FBANK_HOP + 1).clamp(max=self.frames)
        bank = bank.masked_fill(~_real(whole, bank.shape[1])[..., None], 0.0)
        bank = F.pad(bank, (0, 0, 0, self.frames - bank.shape[1]))
        if self.normalise:
            bank = (bank - self.mean) / (self.deviation * 2)
        return Features(bank.transpose(1, 2)[:, None], whole)


@dataclass(frozen=True, kw_only=True)
class LogMel:
    """Whisper's log-mel spectrum of 30 seconds, shorter sounds filled with silence. [radford2023 §2.2]"""

    rate: int = 16000
    bands: int = 80
    fft: int = 400
    hop: int = 160
    seconds: int = 30  # of one window
    attention_mask: bool = False  # as `WaveFeatures` has it; the model reads the silence too

    @property
    def samples(self) -> int:
        """In one window."""
        return self.seconds * self.rate

    def __call__(self, waves: Tensor, lengths: Tensor | None = None) -> Features:
        """[b t] → [b m n], n being the frames of one window; what is longer is cut."""
        lengths = _checked(waves, lengths, 1).clamp(max=self.samples)
        waves = waves[:, : self.samples]
        waves = waves.masked_fill(~_real(lengths, waves.shape[1]), 0.0)
        waves = F.pad(waves, (0, self.samples - waves.shape[1]))
        return Features(self.spectrum(waves), (lengths + self.hop - 1) // self.hop)

    def spectrum(self, waves: Tensor) -> Tensor:
        """The same of rows of any length of their own, neither cut nor filled: [b t] → [b m ⌊t/hop⌋]."""
        if waves.shape[1] <= self.fft // 2:
            raise QkvError(f"A log-mel spectrum needs more than {self.fft // 2} samples: fill the sound with silence.")
        return log_mel(waves, self.bands, self.rate, self.fft, self.hop)


SoundFeatures = WaveFeatures | FilterBank | LogMel
