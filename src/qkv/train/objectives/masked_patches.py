"""Of what colour the hidden patches of a picture were: to learn from pictures alone. [dosovitskiy2021 §B.1.2]

Shapes: b pictures, c channels, h height, w width, n patches, m hidden patches of the batch, d width, v colours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch.nn.functional as F

from qkv.data.image_rows import ImageBatch
from qkv.data.patch_colours import patch_colours
from qkv.data.patch_hiding import PatchHiding
from qkv.data.preprocessing import Normalise
from qkv.errors import QkvError
from qkv.models.image_model import ImageModel
from qkv.parts.heads import PatchHead
from qkv.parts.pixels import normalised
from qkv.parts.precision import widened
from qkv.train.objectives.loss import Loss


@dataclass(frozen=True, kw_only=True)
class MaskedPatchLoss:
    """Cross-entropy of the mean colour, 3 bits a channel, of every hidden patch.

    `normalise` is that of the model's preprocessing. Labels are not looked at.
    """

    counts: ClassVar[str] = "hidden patches"
    decides_on_host: ClassVar[bool] = True

    normalise: Normalise
    hiding: PatchHiding = PatchHiding()  # noqa: RUF009 (frozen)

    def __call__(self, model: ImageModel, batch: ImageBatch) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: ImageModel, batch: ImageBatch) -> dict[str, Loss]:
        """The loss, and the share of hidden patches whose colour is the likeliest."""
        if not isinstance(model.head, PatchHead):
            raise QkvError("Learning what hidden patches were needs a model with the head 'masked', such as a ViT.")
        if batch.mixing is not None:
            raise QkvError("Hidden patches are those of one picture: leave the mixing of pictures out.")
        random = np.random.default_rng(batch.seed)
        pixels = batch.changed(random)  # [b c h w]
        rows, columns = model.embed.grid(pixels)
        hidden = self.hiding.draw(batch.labelled, rows * columns, random, pixels, len(pixels) - batch.labelled)
        logits = model(normalised(pixels, self.normalise), hidden=hidden)  # [b n v]
        side = model.embed.patches.kernel_size
        wanted = patch_colours(pixels, (side[0], side[1])).flatten()[hidden.places]  # [m]
        said = widened(logits.flatten(0, 1).index_select(0, hidden.places))  # [m v]
        loss = F.cross_entropy(said, wanted, reduction="sum")
        right = (said.argmax(-1) == wanted).sum()
        return {"loss": Loss(loss, len(wanted)), "accuracy": Loss(right, len(wanted))}
