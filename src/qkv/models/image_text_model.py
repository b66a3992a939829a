"""What a model of pictures and texts offers: one vector for each, in a space where what belongs together lies together.

Shapes: i pictures, t texts, s slots of a text, j width of the joint space, k classes, p prompts a class.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.models.described import DESCRIBED
from qkv.models.image_model import ImageModel
from qkv.models.text_model import TextModel
from qkv.parts.context import Ledger
from qkv.parts.precision import widened, without_autocast
from qkv.parts.spec import Depends

TEMPERATURE = 0.07  # at the start [radford2021 §2.5]


class Likeness(NamedTuple):
    """How alike every picture and every text are."""

    images: Tensor  # [i j], of length 1
    texts: Tensor  # [t j], of length 1
    logits: Tensor  # [i t]: their cosines times the learned scale


class ImageTextModel(nn.Module):
    """Two towers, whose heads project into one space, and the scale of cosines there. [radford2021 §2.3]"""

    depends_on = Depends("log_scale", "image", "text", unread=DESCRIBED)

    family: str  # what the model was built from, as `models.catalogue.build` notes it
    sizes: Any

    def __init__(self, image: ImageModel, text: TextModel) -> None:
        super().__init__()
        self.image, self.text = image, text
        self.log_scale = nn.Parameter(torch.tensor(-math.log(TEMPERATURE)))

    def forward(
        self, images: Tensor, ids: Tensor, *, lengths: Tensor | None = None, ledger: Ledger | None = None
    ) -> Likeness:
        """Pictures [i c h w] and texts [t s], each of which is compared with each."""
        pictures, texts = self.of_images(images, ledger=ledger), self.of_texts(ids, lengths=lengths, ledger=ledger)
        return Likeness(pictures, texts, self.logits(pictures, texts))

    def of_images(self, images: Tensor, *, ledger: Ledger | None = None) -> Tensor:
        """One vector a picture, of length 1. [i j]"""
        return F.normalize(widened(self.image(images, ledger=ledger)), dim=-1)

    def of_texts(self, ids: Tensor, *, lengths: Tensor | None = None, ledger: Ledger | None = None) -> Tensor:
        """One vector a text, of length 1. [t j]"""
        return F.normalize(widened(self.text(ids, lengths=lengths, ledger=ledger)), dim=-1)

    def logits(self, images: Tensor, texts: Tensor) -> Tensor:
        """[i j] [t j] → [i t]"""
        with without_autocast(images):
            return images @ texts.T * widened(self.log_scale).exp()


def mean_directions(vectors: Tensor) -> Tensor:
    """The mean of several vectors of length 1, made that long again. [k p j] → [k j]"""
    return F.normalize(vectors.mean(1), dim=-1)
