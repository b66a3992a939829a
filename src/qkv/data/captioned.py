"""Pictures with captions, and the rows that a model of pictures and texts learns from.

Shapes: n things, p pictures, b pairs of a batch, h height, w width, c channels, s slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.augment.steps import Augmentation
from qkv.data.columns import text
from qkv.data.image_files import picture_from
from qkv.data.image_rows import Pixels
from qkv.data.images import Source
from qkv.data.plan import PlannedBatch
from qkv.data.preprocessing import Normalise
from qkv.data.records import STANDARD_INPUT
from qkv.data.rows import TensorBatch, single
from qkv.data.table import Problem, read_table
from qkv.data.text_rows import TextRows
from qkv.data.token_rows import Ints
from qkv.errors import QkvError


@dataclass(frozen=True)
class CaptionedFiles:
    """Pictures that were found and not yet read, and the captions of each."""

    images: list[Source]
    captions: list[tuple[str, ...]]
    problems: list[Problem] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.images)


def read_captions(
    path: Path | str,
    *,
    image: str = "image",
    caption: str = "text",
    names: Sequence[str] | None = None,
    format: str | None = None,
) -> CaptionedFiles:
    """Columns of a table: image files beside it, or in parquet their content; and a caption, or a list of several."""
    folder = Path() if str(path) == STANDARD_INPUT else Path(path)
    folder = folder if folder.is_dir() else folder.parent
    kinds = {image: picture_from(folder), caption: captions}
    table = read_table(path, [image, caption], kinds=kinds, names=names, format=format)
    return CaptionedFiles(table.column(image), table.column(caption), table.problems)


def captions(value: Any) -> tuple[str, ...]:
    """What a column of captions holds: a text, or a list of texts."""
    if not isinstance(value, list):
        return (text(value),)
    if not value:
        raise ValueError("is empty")
    return tuple(text(each) for each in value)


@dataclass(frozen=True, eq=False)
class Captioned:
    """Things that are shown and told: each has one picture or more and one caption or more, all of them right.

    In every epoch one picture and one caption of each thing are drawn.
    """

    pixels: Pixels  # [p h w c]; may be a memory map
    captions: Sequence[tuple[str, ...]]  # [n]
    pictures: Sequence[tuple[int, ...]] | None = None  # [n]: places among the pixels; None: thing i has picture i

    def __post_init__(self) -> None:
        if self.pixels.dtype != np.uint8 or self.pixels.ndim != 4 or not len(self.pixels):
            raise QkvError(
                f"Pictures must be numbers of 8 bits [n h w c], at least one, not {self.pixels.dtype} "
                f"{list(self.pixels.shape)}."
            )
        if len(self.shown) != len(self.captions):
            raise QkvError(f"There are pictures of {len(self.shown)} things, and captions of {len(self.captions)}.")
        if not all(self.captions) or not all(self.shown):
            raise QkvError("Each thing needs a caption and a picture, and one has none.")
        if not all(0 <= place < len(self.pixels) for places in self.shown for place in places):
            raise QkvError(f"A thing has a picture that is none of the {len(self.pixels)}.")

    def __len__(self) -> int:
        return len(self.captions)

    @property
    def shown(self) -> Sequence[tuple[int, ...]]:
        return [(place,) for place in range(len(self.pixels))] if self.pictures is None else self.pictures

    def some(self, things: Sequence[int]) -> Captioned:
        """Some of the things; the pictures stay where they are."""
        shown = self.shown
        return Captioned(self.pixels, [self.captions[i] for i in things], [shown[i] for i in things])


@dataclass(frozen=True)
class CaptionBatch(TensorBatch):
    """Pictures and a caption of each."""

    pixels: Tensor  # [b c h w] uint8
    ids: Tensor  # [b s] long
    lengths: Tensor  # [b]
    normalise: Normalise
    seed: int = 0  # what is drawn for this batch is drawn from it
    augment: Augmentation | None = None

    @property
    def images(self) -> Tensor:
        """As a model reads them, changed where they are to be, on the device they are on. [b c h w] float32"""
        pixels = self.pixels
        if self.augment is not None:
            pixels = self.augment(pixels, np.random.default_rng(self.seed))
        return self.normalise(pixels)


@dataclass(frozen=True, eq=False)
class CaptionRows:
    """A picture and an encoded caption of every thing: the first of each, or with `anew` others in every epoch."""

    things: Captioned
    texts: TextRows  # all captions of the first thing, then all of the second, …
    normalise: Normalise
    pictures: Ints  # [n]: the place of the picture that is taken of each thing
    captions: Ints  # [n]: the place of its caption among the texts
    seed: int = 0
    epoch: int = 0
    augment: Augmentation | None = None

    @classmethod
    def first(cls, things: Captioned, texts: TextRows, normalise: Normalise) -> CaptionRows:
        pictures = np.array([places[0] for places in things.shown])
        return cls(things, texts, normalise, pictures, _firsts(things.captions))

    def __len__(self) -> int:
        return len(self.things)

    @property
    def original(self) -> Ints:
        return np.arange(len(self))

    @property
    def sizes(self) -> tuple[Ints, Ints]:
        return single(self.texts.tokens.lengths[self.captions])

    def batch(self, planned: PlannedBatch) -> CaptionBatch:
        if planned.filler:
            raise QkvError("Pictures and texts are compared with each other, so batches with filler are not for them.")
        ids, lengths = self.texts.tokens.rectangle(self.captions[planned.rows], planned.source_width, 0)
        pixels = torch.from_numpy(np.ascontiguousarray(self.things.pixels[self.pictures[planned.rows]]))
        drawn = np.random.SeedSequence([self.seed, self.epoch, *(int(row) for row in planned.rows[:4])])
        return CaptionBatch(
            pixels.permute(0, 3, 1, 2).contiguous(),
            torch.from_numpy(ids),
            torch.from_numpy(lengths),
            self.normalise,
            int(drawn.generate_state(1, np.uint32)[0]),
            self.augment,
        )

    def anew(self, seed: int = 0, augment: Augmentation | None = None) -> Callable[[int], CaptionRows]:
        """For `Batches`: in every epoch other pictures and captions, changed in other ways."""
        starts = _firsts(self.things.captions)
        counts = np.array([len(each) for each in self.things.captions])
        shown = self.things.shown

        def rows(epoch: int) -> CaptionRows:
            draw = np.random.default_rng([seed, epoch])
            taken = starts + draw.integers(0, counts)
            pictures = np.array([places[int(draw.integers(len(places)))] for places in shown])
            return replace(self, pictures=pictures, captions=taken, seed=seed, epoch=epoch, augment=augment)

        return rows


def _firsts(captions: Sequence[Sequence[str]]) -> Ints:
    """Where each thing's captions begin among all of them. [n]"""
    counts = np.array([len(each) for each in captions], np.int64)
    return np.cumsum(counts) - counts
