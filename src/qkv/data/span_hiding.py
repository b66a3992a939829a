"""Which frames are hidden from a model that must do without them: spans of equal length at random places.

Shapes: b rows, n frames.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qkv.errors import QkvError


@dataclass(frozen=True)
class SpanHiding:
    """About `share` of the frames of each row, in spans of `length` that may overlap. [baevski2020 §3.1]

    A row of n frames gets share · n / length spans (rounded up or down at random, so that the mean is right), `least`
    at least, as far as it has room for them; they begin at different frames. For pre-training the paper has a share of
    0.65 in spans of 10: each frame begins one with a chance of 0.065.
    """

    share: float
    length: int
    least: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or self.length < 1 or self.least < 0:
            raise QkvError(
                f"Spans hide a share from 0 to 1 in lengths above 0, not {self.share} in lengths of {self.length}."
            )

    def draw(self, lengths: Tensor, size: int, random: np.random.Generator) -> Tensor:
        """Rows of `lengths` [b] real frames in `size` slots → [b size], True where a frame is hidden."""
        hidden = np.zeros((len(lengths), size), dtype=bool)
        rounding = random.random()  # one for all rows, so that long and short ones are hidden alike
        for row, real in enumerate(lengths.tolist()):
            room = real - self.length + 1  # places where a span can begin
            if room < 1:
                continue
            spans = max(int(self.share * real / self.length + rounding), self.least)
            starts = random.choice(room, min(spans, room, max(1, real // self.length)), replace=False)
            hidden[row, (starts[:, None] + np.arange(self.length)).reshape(-1)] = True
        return torch.from_numpy(hidden)


def draw_distractors(hidden: Tensor, count: int, random: np.random.Generator) -> Tensor:
    """For each frame that is hidden in [b n], `count` other hidden frames of its row. [b n count] long

    What stands at other frames is 0 and means nothing. A row with one hidden frame alone has no others: it is its own
    distractor, which the loss leaves out. [baevski2020 §3.2]
    """
    found = np.zeros((*hidden.shape, count), dtype=np.int64)
    for row, places in enumerate(hidden.cpu().numpy()):
        (own,) = places.nonzero()
        if len(own) > 1:
            drawn = random.integers(0, len(own) - 1, (len(own), count))
            drawn += drawn >= np.arange(len(own))[:, None]  # any but itself, all equally likely
            found[row, own] = own[drawn]
        elif len(own):
            found[row, own] = own[0]
    return torch.from_numpy(found)
