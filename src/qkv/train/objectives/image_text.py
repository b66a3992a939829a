"""Pictures and texts that belong together should lie near each other. [radford2021 §2.3]

Shapes: b pairs of a picture and a text, c channels, h height, w width, s slots, j width of the joint space.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.models.image_text_model import ImageTextModel
from qkv.parts.precision import widened, without_autocast
from qkv.train.objectives.loss import Loss


class ImageTextBatch(Protocol):
    """Pictures as the model takes them, and the text of each."""

    @property
    def images(self) -> Tensor: ...  # [b c h w]

    @property
    def ids(self) -> Tensor: ...  # [b s]

    @property
    def lengths(self) -> Tensor | None: ...  # [b]; None: texts end as the model knows it


@dataclass(frozen=True, kw_only=True)
class ImageTextLoss:
    """Which text of the batch a picture belongs to, and which picture a text: the mean of both cross-entropies of the
    scaled cosines [radford2021 fig.3]. The scale is learned, and counts for no more than `largest_scale`
    [radford2021 §2.5].

    DIFFERS [radford2021]: a text that stands in the batch twice is no wrong answer to either of its pictures. Among
    400 million captions none does; among a few thousand names many do.
    """

    largest_scale: float = 100.0
    counts = "pairs"
    compares_rows = True

    def __call__(self, model: ImageTextModel, batch: ImageTextBatch) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: ImageTextModel, batch: ImageTextBatch) -> dict[str, Loss]:
        """The loss, and the shares of pictures and of texts that find their own."""
        images, texts = model.of_images(batch.images), model.of_texts(batch.ids, lengths=batch.lengths)  # [b j] each
        return self.of_vectors(images, texts, model.log_scale, same_texts(batch))

    def of_vectors(self, images: Tensor, texts: Tensor, log_scale: Tensor, same: Tensor) -> dict[str, Loss]:
        """The same of vectors [b j] of length 1; `same` [b b] says which other pairs are no wrong answers."""
        scale = widened(log_scale).clamp(max=math.log(self.largest_scale)).exp()
        with without_autocast(images):
            logits = (images @ texts.T * scale).masked_fill(same, -torch.inf)  # [b b]
        right = torch.arange(len(logits), device=logits.device)
        loss = (F.cross_entropy(logits, right, reduction="sum") + F.cross_entropy(logits.T, right, reduction="sum")) / 2
        return {
            "loss": Loss(loss, len(logits)),
            "image accuracy": Loss((logits.argmax(1) == right).sum(), len(logits)),
            "text accuracy": Loss((logits.argmax(0) == right).sum(), len(logits)),
        }


def same_texts(batch: ImageTextBatch) -> Tensor:
    """Pairs of others whose texts are the same: neither is a wrong answer to the other. [b b]"""
    ids = batch.ids
    if batch.lengths is not None:  # whatever pads a text is not of it
        slots = torch.arange(ids.shape[1], device=ids.device)
        ids = ids.where(slots < batch.lengths[:, None], -1)
    same = (ids[:, None] == ids[None]).all(-1)
    return same & ~torch.eye(len(ids), dtype=torch.bool, device=ids.device)
