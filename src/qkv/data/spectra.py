"""Spectra on the mel scale, as published models were trained on them, in torch: batched, and where the samples are.

Shapes: b rows, t samples, n frames, f frequencies, m mel bands.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

FBANK_RATE, FBANK_FRAME, FBANK_HOP, FBANK_FFT = 16000, 400, 160, 512  # in samples: 25 ms every 10 ms
FBANK_FLOOR = 1.192092955078125e-07  # of an energy before its logarithm: the smallest step of single precision
LOG_MEL_FLOOR = 1e-10
LOG_MEL_RANGE = 8.0  # decades below the loudest that are told apart


def kaldi_mel(hertz: Tensor) -> Tensor:
    """The mel scale of the Kaldi toolkit."""
    return 1127.0 * (1.0 + hertz / 700.0).log()


def slaney_mel(hertz: Tensor) -> Tensor:
    """The mel scale of the Auditory Toolbox: straight up to 1,000 Hz, logarithmic above."""
    logarithmic = 15.0 + (hertz.clamp(min=1000.0) / 1000.0).log() * (27.0 / math.log(6.4))
    return torch.where(hertz < 1000.0, 3.0 * hertz / 200.0, logarithmic)


def slaney_hertz(mel: Tensor) -> Tensor:
    """The inverse of `slaney_mel`."""
    return torch.where(mel < 15.0, 200.0 * mel / 3.0, 1000.0 * ((mel - 15.0) * (math.log(6.4) / 27.0)).exp())


def triangles(corners: Tensor, places: Tensor) -> Tensor:
    """Overlapping triangles: band i rises from corner i to i + 1 and falls to i + 2. [m+2], [f] → [f m]"""
    away = corners - places[:, None]  # [f m+2]
    sides = corners.diff()
    rising, falling = -away[:, :-2] / sides[:-1], away[:, 2:] / sides[1:]
    return torch.minimum(rising, falling).clamp(min=0)


@lru_cache(8)
def fbank_filters(bands: int) -> Tensor:
    """Triangles that are even on the mel scale itself, from 20 Hz on, as Kaldi has them. [f m]"""
    places = kaldi_mel(torch.arange(FBANK_FFT // 2 + 1, dtype=torch.float64) * (FBANK_RATE / FBANK_FFT))
    ends = kaldi_mel(torch.tensor([20.0, FBANK_RATE / 2], dtype=torch.float64))
    return triangles(torch.linspace(float(ends[0]), float(ends[1]), bands + 2, dtype=torch.float64), places)


@lru_cache(8)
def log_mel_filters(bands: int, rate: int, fft: int) -> Tensor:
    """Triangles that are even in hertz, each of area 1, up to 8,000 Hz. [f m]"""
    top = float(slaney_mel(torch.tensor(8000.0, dtype=torch.float64)))
    corners = slaney_hertz(torch.linspace(0.0, top, bands + 2, dtype=torch.float64))  # [m+2]
    filters = triangles(corners, torch.linspace(0, rate // 2, fft // 2 + 1, dtype=torch.float64))
    return filters * (2.0 / (corners[2:] - corners[:-2]))


def fbank(waves: Tensor, bands: int) -> Tensor:
    """Kaldi's log filter bank at 16 kHz, without dither: [b t] → [b n m].

    Each frame loses its mean and is pre-emphasised by 0.97 before its window. The spectrum of a quiet band beside a
    loud one needs more digits than single precision has, and so all is done in double precision.
    """
    frames = waves.double().unfold(1, FBANK_FRAME, FBANK_HOP)  # [b n 400]
    frames = frames - frames.mean(-1, keepdim=True)
    before = torch.cat((frames[..., :1], frames[..., :-1]), -1)
    window = torch.hann_window(FBANK_FRAME, periodic=False, dtype=torch.float64, device=waves.device)
    spectrum = torch.fft.rfft((frames - 0.97 * before) * window, FBANK_FFT)  # [b n f]
    energy = spectrum.abs().square() @ fbank_filters(bands).to(waves.device)
    return energy.clamp(min=FBANK_FLOOR).log().float()


def log_mel(waves: Tensor, bands: int, rate: int, fft: int, hop: int) -> Tensor:
    """Whisper's log-mel spectrum: [b t] → [b m ⌊t/hop⌋]. [radford2023 §2.2]

    Decades of energy, no more than 8 below the loudest of the row, moved to about -1 … 1.
    """
    window = torch.hann_window(fft, device=waves.device)
    spectrum = torch.stft(waves.float(), fft, hop, window=window, return_complex=True)  # [b f n+1]
    energy = spectrum[..., :-1].abs().square().contiguous()
    filters = log_mel_filters(bands, rate, fft).to(waves.device, torch.float32)
    decades = (filters.T @ energy).clamp(min=LOG_MEL_FLOOR).log10()
    return (torch.maximum(decades, decades.amax((1, 2), keepdim=True) - LOG_MEL_RANGE) + 4.0) / 4.0
