"""Which patches of pictures are hidden from a model that must say what they were, and in what way.

Shapes: b pictures, n patches of each, k of them hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.data.augment.steps import beside
from qkv.errors import QkvError


class HiddenPatches(NamedTuple):
    """How the patches of a batch stand in for each other; those of all pictures are numbered one after the other."""

    masked: Tensor  # [b n] bool: a mask stands here
    sources: Tensor  # [b n] long: the patch whose embedding stands here, its own where nothing else does
    places: Tensor  # [b·k] long: those to be told, hidden in whatever way


@dataclass(frozen=True)
class PatchHiding:
    """A share of the patches of every picture: most masked, some replaced by others, the rest left as they are.

    [dosovitskiy2021 §B.1.2]
    """

    share: float = 0.5
    masked: float = 0.8  # of the hidden ones
    replaced: float = 0.1  # of the hidden ones, by any patch of the batch

    def __post_init__(self) -> None:
        if not (0 < self.share <= 1 and min(self.masked, self.replaced) >= 0 and self.masked + self.replaced <= 1):
            raise QkvError(
                f"Hidden is a share of the patches above 0, at most 1; so are its two ways together; not {self}."
            )

    def draw(
        self, rows: int, patches: int, random: np.random.Generator, like: Tensor, filler: int = 0
    ) -> HiddenPatches:
        """For `rows` pictures of so many patches, and `filler` in which nothing is hidden; where `like` is."""
        count = max(1, round(self.share * patches))
        hidden = random.random((rows, patches)).argsort(1)[:, :count]  # [b k]
        places = (hidden + patches * np.arange(rows)[:, None]).reshape(-1)
        ways = random.random(len(places))
        sources = np.arange((rows + filler) * patches)
        masked = np.zeros(len(sources), bool)
        masked[places[ways < self.masked]] = True
        swapped = places[(ways >= self.masked) & (ways < self.masked + self.replaced)]
        sources[swapped] = random.integers(0, rows * patches, len(swapped))
        shape = (rows + filler, patches)
        return HiddenPatches(
            beside(masked.reshape(shape), like), beside(sources.reshape(shape), like), beside(places, like)
        )


def every_other(rows: int, grid: tuple[int, int], first: int, device: torch.device) -> HiddenPatches:
    """Masks on the squares of one colour of a chessboard, that of the upper left corner with `first` 0."""
    down, across = (torch.arange(side, device=device) for side in grid)
    masked = ((down[:, None] + across) % 2 == first).flatten().expand(rows, -1)  # [b n]
    sources = torch.arange(masked.numel(), device=device).view_as(masked)
    return HiddenPatches(masked, sources, sources[masked])
