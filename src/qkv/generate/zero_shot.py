"""Classes that are told in words: a picture gets the label whose description lies nearest to it. [radford2021 §3.1]

Shapes: i pictures, c channels, h height, w width, k classes, p prompts a class, j width of the joint space.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.encoding import check_texts
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.reader import TextReader
from qkv.generate.readers import Labelled
from qkv.generate.use import at_rest
from qkv.models.image_text_model import ImageTextModel, mean_directions

TEMPLATES = ("a photo of a {}.",)  # [radford2021 §3.1.4]
BATCH_IMAGES = 64


class Describer(TextReader):
    """One vector a text, in the space that texts and pictures share."""

    kinds: ClassVar = ("projection",)

    def run(self, texts: Sequence[str], *, batch_tokens: int | None = None) -> Tensor:
        """Of length 1; what is longer than the model reads is cut. [t j]"""
        return F.normalize(self.vectors(texts, batch_tokens=batch_tokens), dim=-1)


class ZeroShot:
    """A classifier made of labels: each stands in every template, and the mean of these prompts is its class."""

    def __init__(
        self,
        model: ImageTextModel,
        tokenizer: TextTokenizer,
        labels: Sequence[str],
        templates: Sequence[str] = TEMPLATES,
    ) -> None:
        labels, templates = check_texts(labels), check_texts(templates)
        if len(set(labels)) < len(labels) or not labels:
            raise QkvError("The labels must be one or more, and each a different one.")
        for template in templates:
            if "{}" not in template:
                raise QkvError(f"The template {template!r} has no place for a label: it should hold {{}}.")
        if not templates:
            raise QkvError("There is no template: give one such as 'a photo of a {}.'")
        prompts = [template.replace("{}", label) for label in labels for template in templates]
        vectors = Describer(model.text, tokenizer).run(prompts)  # [k·p j]
        self.model, self.labels = model, tuple(labels)
        self.weights = mean_directions(vectors.unflatten(0, (len(labels), len(templates))))  # [k j]

    def logits(self, images: Tensor, batch: int = BATCH_IMAGES) -> Tensor:
        """[i c h w] → [i k], on the CPU."""
        device = self.model.log_scale.device
        with at_rest(self.model):
            weights = self.weights.to(device)
            parts = [self.model.logits(self.model.of_images(some.to(device)), weights) for some in images.split(batch)]
        return torch.cat(parts).float().cpu()

    def run(self, images: Tensor, batch: int = BATCH_IMAGES) -> list[Labelled]:
        """The label of each picture, which is prepared as the model wants it."""
        return [Labelled.of(self.labels, shares) for shares in self.logits(images, batch).softmax(-1)]
