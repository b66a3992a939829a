"""Image models with the way of a picture into them: pictures in, and for each what the head says of it.

Shapes: b pictures of a batch, s tokens, d width of the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor

from qkv.data.images import Source
from qkv.data.patch_colours import middle_of
from qkv.data.patch_hiding import every_other
from qkv.data.preprocessing import Preprocessing
from qkv.data.preprocessing_files import write_preprocessing
from qkv.errors import QkvError
from qkv.generate.readers import Labelled
from qkv.generate.use import ModelUse, answered, at_rest, row_of
from qkv.models.image_model import ImageModel
from qkv.weights.save import save_model

BATCH_IMAGES = 32


class ImageReader(ModelUse):
    """What all uses of an image model share; each use is a subclass for one kind of head."""

    def __init__(self, model: ImageModel, preprocessing: Preprocessing) -> None:
        self.check_head(model)
        self.model, self.preprocessing = model, preprocessing

    def save(self, folder: Path | str) -> None:
        save_model(self.model, Path(folder))
        write_preprocessing(self.preprocessing, folder)

    def answers(self, pictures: Sequence[Source], batch_images: int = BATCH_IMAGES) -> list[Any]:
        """What the head says of each picture, on the CPU. Only a few batches of pictures are in memory at a time."""

        def rows(output: Any, inputs: Tensor) -> list[Any]:
            return [row_of(output, number) for number in range(len(inputs))]

        batches = ((range(len(inputs)), inputs) for inputs in self.inputs(pictures, batch_images))
        return [answer for _, answer in answered(self.model, batches, self.model, rows)]

    def inputs(self, pictures: Sequence[Source], batch_images: int) -> Iterator[Tensor]:
        """What the model reads of the pictures, batch by batch. [b c h w]"""
        if batch_images < 1:
            raise QkvError(f"A batch holds one picture at least, not {batch_images}.")
        pictures = check_pictures(pictures)
        device = next(self.model.parameters()).device
        for first in range(0, len(pictures), batch_images):
            yield self.preprocessing.batch(pictures[first : first + batch_images]).to(device).pixels


class ImageClassifier(ImageReader):
    """One label a picture."""

    kinds: ClassVar = ("classification", "distilled")

    def run(self, pictures: Sequence[Source], *, batch_images: int = BATCH_IMAGES) -> list[Labelled]:
        """The label of each picture: files, their content, or pictures that Pillow has open."""
        labels = self.model.head_choice.labels
        return [Labelled.of(labels, logits.softmax(-1)) for logits in self.answers(pictures, batch_images)]


class ImageEncoder(ImageReader):
    """One vector a picture."""

    kinds: ClassVar = ("embedding", "projection")

    def run(self, pictures: Sequence[Source], *, batch_images: int = BATCH_IMAGES) -> Tensor:
        """[pictures d]"""
        vectors = self.answers(pictures, batch_images)
        return torch.stack(vectors) if vectors else torch.empty(0, 0)

    def similarities(self, first: Sequence[Source], second: Sequence[Source]) -> Tensor:
        """The cosine of the angle between each of the first pictures and each of the second. [first second]"""
        normed = [torch.nn.functional.normalize(self.run(pictures), dim=-1) for pictures in (first, second)]
        return normed[0] @ normed[1].T


class ImageStateReader(ImageReader):
    """The stream itself, for those who build on it."""

    kinds: ClassVar = ("states", "pooled")

    def run(self, pictures: Sequence[Source], *, batch_images: int = BATCH_IMAGES) -> list[Tensor]:
        """The states of each picture's tokens, those before the patches included. [s d] each"""
        answers = self.answers(pictures, batch_images)
        return [answer[0] if isinstance(answer, tuple) else answer for answer in answers]


class PatchGuesser(ImageReader):
    """The colours of patches that it does not see."""

    kinds: ClassVar = ("masked",)

    def run(self, pictures: Sequence[Source], *, batch_images: int = BATCH_IMAGES) -> list[Tensor]:
        """The colour of every patch, guessed while it is hidden: half of them at a time, as on a chessboard.

        A tensor of 8-bit numbers [rows columns channels] for each picture: a coarse picture of it.
        """
        guesses: list[Tensor] = []
        with at_rest(self.model):
            for inputs in self.inputs(pictures, batch_images):
                grid, rows = self.model.embed.grid(inputs), len(inputs)
                halves = [every_other(rows, grid, first, inputs.device) for first in (0, 1)]
                said = [self.model(inputs, hidden=half).argmax(-1) for half in halves]  # [b n] each
                numbers = torch.where(halves[0].masked, said[0], said[1])
                guesses += middle_of(numbers, inputs.shape[1]).unflatten(1, grid).cpu()
        return guesses


IMAGE_USES: dict[str, type[ImageReader]] = {
    kind: use for use in (ImageClassifier, ImageEncoder, ImageStateReader, PatchGuesser) for kind in use.kinds
}


def use_of_images(model: ImageModel, preprocessing: Preprocessing) -> ImageReader:
    """What a model with this head is used by."""
    return IMAGE_USES[model.head_choice.kind](model, preprocessing)


def check_pictures(pictures: Sequence[Source]) -> list[Source]:
    """A list of pictures; the name of a single file would be read letter by letter."""
    if isinstance(pictures, str | bytes | Path | Image.Image):
        raise QkvError("Give a list of pictures, not a single one: put the one picture into brackets.")
    return list(pictures)
