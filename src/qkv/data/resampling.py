"""Another sampling rate: band-limited interpolation, whole or block by block.

A sample between samples is a sum of its neighbours, weighted by a sinc that a Kaiser window brings to an end. The
sinc's cut-off lies a little below half of the lower rate, so that nothing folds back. The filter is the same for the
same place between two samples, so there are as many sets of weights as places: the polyphase form.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, gcd

import torch
from torch import Tensor

from qkv.errors import QkvError

CROSSINGS = 32  # zeros of the sinc on either side, counted at the lower rate
ROLL_OFF = 0.945  # the cut-off, as a share of half of the lower rate
MOST_WEIGHTS, WEIGHTS_AT_ONCE = 2**23, 2**18  # bounds of memory, for headers that are broken
BETA = 9.0  # of the Kaiser window: what lies outside is about 90 dB down
RATES = (1_000, 768_000)  # samples a second that are read; others are no sound or a broken header


def check_rate(rate: int, what: str) -> None:
    if not RATES[0] <= rate <= RATES[1]:
        raise QkvError(f"{what} has {rate:,} samples a second; qkv reads rates from {RATES[0]:,} to {RATES[1]:,}.")


def resample(samples: Tensor, old: int, new: int) -> Tensor:
    """[t] at one rate → [⌈t · new / old⌉] at another. Sample 0 stays where it is, and silence lies outside."""
    resampler = Resampler(old, new)
    return torch.cat((resampler.push(samples), resampler.finish()))


@lru_cache(8)
def phase_weights(up: int, down: int) -> Tensor:
    """The weights of the inputs around each of `up` places between two of them. [up taps]

    Place p of `up` lies p/up after input 0; tap j weighs input j + 1 - taps/2.
    """
    cut = ROLL_OFF * min(1.0, up / down)  # as a share of half of the old rate
    half = ceil(CROSSINGS / min(1.0, up / down))
    if 2 * half * up > MOST_WEIGHTS:
        raise QkvError(
            f"A sound of {down:,} samples for every {up:,} that are wanted cannot be resampled here, the two have too "
            "little in common: give it a usual rate first."
        )
    taps = torch.arange(1 - half, half + 1, dtype=torch.float64)
    weights = torch.empty(up, 2 * half)
    for places in torch.arange(up, dtype=torch.float64).split(max(1, WEIGHTS_AT_ONCE // (2 * half))):
        distance = places[:, None] / up - taps  # [p taps]
        inside = (1 - (distance / half) ** 2).clamp(min=0)
        kaiser = torch.special.i0(BETA * inside.sqrt()) / torch.special.i0(torch.tensor(BETA, dtype=torch.float64))
        weights[int(places[0]) : int(places[-1]) + 1] = (cut * torch.sinc(cut * distance) * kaiser).float()
    return weights


class Resampler:
    """Blocks in, blocks out; in the end all is as if it had been resampled at once, in the memory of one block."""

    def __init__(self, old: int, new: int) -> None:
        check_rate(old, "The sound")
        check_rate(new, "What is asked for")
        common = gcd(old, new)
        self.up, self.down = new // common, old // common
        self.weights = phase_weights(self.up, self.down)
        self.half = self.weights.shape[1] // 2
        self.kept = torch.zeros(self.half - 1)  # inputs that are still needed; the first ones see silence before them
        self.first = 1 - self.half  # which input is kept[0]
        self.read, self.written = 0, 0

    def push(self, block: Tensor) -> Tensor:
        """The outputs [n] that are certain once these inputs [t] are known."""
        if self.up == self.down:
            return block
        self.read += len(block)
        self.kept = torch.cat((self.kept, block))
        # output n needs inputs up to ⌊n · down / up⌋ + half
        certain = max(0, (self.read - self.half) * self.up - 1) // self.down + 1 if self.read > self.half else 0
        return self._write(max(certain, self.written))

    def finish(self) -> Tensor:
        """What is left, with silence after the end."""
        if self.up == self.down:
            return torch.zeros(0)
        self.kept = torch.cat((self.kept, torch.zeros(2 * self.half + self.down // self.up + 1)))
        return self._write(ceil(self.read * self.up / self.down))

    def _write(self, end: int) -> Tensor:
        """Outputs from `self.written` up to `end`, and inputs that no later one needs are let go."""
        start, self.written = self.written, end
        outputs = torch.empty(end - start)
        for place in range(min(self.up, end - start)):  # outputs that lie alike between their inputs
            number = start + place
            whole, phase = divmod(number * self.down, self.up)
            rows = (end - number + self.up - 1) // self.up
            offset = whole + 1 - self.half - self.first
            inputs = self.kept.as_strided((rows, 2 * self.half), (self.down, 1), self.kept.storage_offset() + offset)
            torch.mv(inputs, self.weights[phase], out=outputs[place :: self.up])
        needed = end * self.down // self.up + 1 - self.half
        self.kept = self.kept[max(0, needed - self.first) :].clone()
        self.first = max(self.first, needed)
        return outputs
