"""Pictures of one size as rows: held in 8 bits, on disk if there are many, and batched like all other rows.

Shapes: n pictures, b of a batch, h height, w width, c channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.data.augment.mixing import Mixing
from qkv.data.augment.steps import Augmentation
from qkv.data.plan import PlannedBatch
from qkv.data.rows import TensorBatch, seed_of, single
from qkv.data.text_rows import with_filler
from qkv.data.token_rows import Ints
from qkv.errors import QkvError
from qkv.files import replacing

Pixels = NDArray[np.uint8]
TOKEN = 256  # pixels that count as one token where a `Batching` counts tokens: a patch of 16 × 16


@dataclass(frozen=True)
class ImageBatch(TensorBatch):
    """Pictures and the class of each."""

    pixels: Tensor  # [b c h w] uint8
    labels: Tensor  # [b] long, -1 in filler rows
    labelled: int  # rows that are not filler
    seed: int = 0  # what is drawn for this batch is drawn from it
    augment: Augmentation | None = None
    mixing: Mixing | None = None

    def changed(self, draw: np.random.Generator) -> Tensor:
        """The pictures in 8 bits, changed where they are to be. [b c h w]"""
        return self.pixels if self.augment is None else self.augment(self.pixels, draw)

    def prepared(self, normalise: Callable[[Tensor], Tensor]) -> PreparedImages:
        """The pictures as a model reads them, changed and mixed where they are to be, on the device they are on.

        What normalises them is a `Normalise`, or who does the same.

        Asked again, a batch gives the same: a teacher sees what its student sees.
        """
        # Where nothing is drawn the seed says nothing: then a step is the same for all batches, and can be recorded.
        draw = np.random.default_rng(0 if self.augment is None and self.mixing is None else self.seed)
        images = normalise(self.changed(draw))
        if self.mixing is None:
            return PreparedImages(images, self.labels, self.labels, torch.ones_like(images[:, 0, 0, 0]))
        mixed = self.mixing(images, draw, self.labelled)
        return PreparedImages(mixed.images, self.labels, self.labels[mixed.partners], mixed.kept)


@dataclass(frozen=True)
class PreparedImages:
    """What a model reads, and the classes of each picture: its own, and that of the one it is mixed with."""

    images: Tensor  # [b c h w] float32
    labels: Tensor  # [b] long, -1 in filler rows
    others: Tensor  # [b] long, the same where nothing is mixed
    kept: Tensor  # [b] float32: how much of the picture is of its own class


@dataclass(frozen=True, eq=False)
class ImageRows:
    """All the pictures of a data set, of one size, and the number of each one's class.

    Every batch has a seed of its own, by the data's `seed`, the epoch and its rows: with `anew`, what is drawn to
    change pictures is other in each epoch and the same when a run is resumed.
    """

    pixels: Pixels  # [n h w c], or [n h w] for greys; may be a memory map
    labels: Ints  # [n]
    names: tuple[str, ...]  # of all classes, in the order of a model's logits
    seed: int = 0
    epoch: int = 0
    augment: Augmentation | None = None
    mixing: Mixing | None = None

    def __post_init__(self) -> None:
        if self.pixels.dtype != np.uint8 or self.pixels.ndim not in (3, 4) or not len(self.pixels):
            raise QkvError(
                f"Pictures must be numbers of 8 bits [n h w] or [n h w c], at least one, not {self.pixels.dtype} "
                f"{list(self.pixels.shape)}."
            )
        if self.labels.shape != (len(self.pixels),):
            raise QkvError(f"Each picture has one label, but there are {len(self.pixels)} and {len(self.labels)}.")
        if not 0 <= self.labels.min() <= self.labels.max() < len(self.names):
            raise QkvError(f"The labels should be from 0 to {len(self.names) - 1}, one for each of the class names.")

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def size(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        height, width = self.pixels.shape[1:3]
        return (self.pixels.shape[3] if self.pixels.ndim == 4 else 1), height, width

    @property
    def original(self) -> Ints:
        return np.arange(len(self))

    @property
    def sizes(self) -> tuple[Ints, Ints]:
        _, height, width = self.size
        return single(np.full(len(self), -(-height * width // TOKEN)))

    def batch(self, planned: PlannedBatch) -> ImageBatch:
        order = np.argsort(planned.rows, kind="stable")  # a memory map is read from front to back
        some = np.empty((len(planned.rows), *self.pixels.shape[1:]), np.uint8)
        some[order] = self.pixels[planned.rows[order]]
        some = some[..., None] if some.ndim == 3 else some
        pixels = torch.from_numpy(some).permute(0, 3, 1, 2)  # [b c h w], in memory still pixel by pixel
        if planned.filler:
            pixels = torch.cat([pixels, pixels.new_zeros(planned.filler, *pixels.shape[1:])])
        seed = seed_of(self.seed, self.epoch, planned)
        labels = with_filler(self.labels, planned, -1)
        return ImageBatch(pixels, labels, len(planned.rows), seed, self.augment, self.mixing)

    def anew(
        self, seed: int = 0, augment: Augmentation | None = None, mixing: Mixing | None = None
    ) -> Callable[[int], ImageRows]:
        """For `Batches`: the same pictures in every epoch, changed in other ways. What is validated on stays plain."""
        return lambda epoch: replace(self, seed=seed, epoch=epoch, augment=augment, mixing=mixing)

    def some(self, places: Sequence[int] | Ints) -> ImageRows:
        """Some of the pictures, copied into memory."""
        places = np.asarray(places)
        return replace(self, pixels=self.pixels[places], labels=self.labels[places])


def without_labels(pixels: Pixels) -> ImageRows:
    """Pictures of which nothing is known: they are all of one class without a name."""
    return ImageRows(pixels, np.zeros(len(pixels), np.int64), ("",))


def map_array(file: Path | str) -> NDArray[np.generic]:
    """The array of a .npy file, read from the disk where it is touched and nowhere else."""
    try:
        array: NDArray[np.generic] = np.load(file, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise QkvError(f"There is no file {file}: give the path of an existing .npy file.") from error
    except (OSError, ValueError, EOFError) as error:
        raise QkvError(f"{file} is no whole .npy file of numbers: it was cut short or is something else.") from error
    if not isinstance(array, np.ndarray):
        raise QkvError(f"{file} holds several arrays: give a .npy file, which holds one.")
    return array


def store_pixels(
    file: Path, most: int, size: tuple[int, int, int], picture: Callable[[int], Pixels | None]
) -> tuple[Pixels, list[int]]:
    """Up to `most` pictures [h w c], made one after the other, as one .npy file, whole or not at all.

    What comes back is the file's memory map and which of them there are: those for which `picture` gave None are not.
    """
    if file.suffix != ".npy":
        raise QkvError(f"Pictures are stored in a .npy file, and {file} is named otherwise.")
    good: list[int] = []
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as passing, passing.open("wb") as stream:
            _write_header(stream, (most, *size))
            for number in range(most):
                made = picture(number)
                if made is not None:
                    stream.write(made.tobytes())
                    good.append(number)
            stream.seek(0)
            _write_header(stream, (len(good), *size))
    except OSError as error:
        raise QkvError(f"Cannot write {file}: {(error.strerror or str(error)).lower()}.") from error
    return map_array(file), good  # type: ignore[return-value]


def _write_header(stream: BinaryIO, shape: tuple[int, ...]) -> None:
    """A header of .npy leaves room for its first size to grow, so one with fewer pictures is as long."""
    np.lib.format.write_array_header_1_0(
        stream, {"descr": np.lib.format.dtype_to_descr(np.dtype(np.uint8)), "fortran_order": False, "shape": shape}
    )
