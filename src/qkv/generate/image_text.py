"""A model of pictures and texts, with what both need on their way in: how alike they are, and labels told in words.

Shapes: i pictures, t texts, j width of the joint space.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor

from qkv.data.images import Source
from qkv.data.preprocessing import Preprocessing
from qkv.data.preprocessing_files import write_preprocessing
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.generate.image_readers import BATCH_IMAGES, ImageEncoder
from qkv.generate.reader import TOKENIZER_FILE
from qkv.generate.readers import Labelled
from qkv.generate.zero_shot import TEMPLATES, Describer, ZeroShot
from qkv.models.image_text_model import ImageTextModel
from qkv.weights.save import save_model


class ImageTextReader:
    """One vector a picture and one a text, of length 1, in a space that they share."""

    def __init__(self, model: ImageTextModel, tokenizer: TextTokenizer, preprocessing: Preprocessing) -> None:
        self.model, self.tokenizer, self.preprocessing = model, tokenizer, preprocessing
        self.describer, self.encoder = Describer(model.text, tokenizer), ImageEncoder(model.image, preprocessing)

    def save(self, folder: Path | str) -> None:
        save_model(self.model, Path(folder))
        self.tokenizer.save(Path(folder) / TOKENIZER_FILE)
        write_preprocessing(self.preprocessing, folder)

    def of_pictures(self, pictures: Sequence[Source], *, batch_images: int = BATCH_IMAGES) -> Tensor:
        """[i j]"""
        return F.normalize(self.encoder.run(pictures, batch_images=batch_images), dim=-1)

    def of_texts(self, texts: Sequence[str]) -> Tensor:
        """[t j]"""
        return self.describer.run(texts)

    def similarities(self, pictures: Sequence[Source], texts: Sequence[str]) -> Tensor:
        """The cosine of the angle between each picture and each text. [i t]"""
        return self.of_pictures(pictures) @ self.of_texts(texts).T

    def run(
        self,
        pictures: Sequence[Source],
        labels: Sequence[str],
        *,
        templates: Sequence[str] = TEMPLATES,
        batch_images: int = BATCH_IMAGES,
    ) -> list[Labelled]:
        """The label of each picture among these, which the model need never have seen. [radford2021 §3.1]"""
        if not pictures:
            raise QkvError("There is no picture: give at least one.")
        weights = ZeroShot(self.model, self.tokenizer, labels, templates).weights.cpu()  # [k j]
        vectors = self.of_pictures(pictures, batch_images=batch_images)
        scale = self.model.log_scale.detach().float().cpu().exp()
        shares = (scale * vectors @ weights.float().T).softmax(-1)  # [i k]
        names = tuple(labels)
        return [Labelled.of(names, row) for row in shares]
