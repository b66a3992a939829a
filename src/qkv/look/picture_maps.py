"""What an image model looks at, and what it has learned of pictures, as plain arrays.

Shapes: l layers, h heads, q queries, k keys, r rows and c columns of the grid of patches, p pixels of a side of a
patch, d width of the stream, n colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from qkv.data.images import Source, shown_source
from qkv.errors import QkvError
from qkv.generate.image_readers import ImageClassifier, ImageReader
from qkv.generate.use import at_rest
from qkv.models.image_model import ImageModel
from qkv.parts.context import Ledger

Floats = NDArray[np.float32]
COMPONENTS = 28  # of the patch filters that are shown [dosovitskiy2021 fig.7]


@dataclass(frozen=True, eq=False)
class PictureRecord:
    """One picture as a model read it, and where every head of every layer looked."""

    name: str
    picture: Image.Image  # resized and cropped, as the model saw it
    said: str  # the label and its probability, where the model decides
    weights: Floats  # [l h q k]
    grid: tuple[int, int]
    prefix: int  # tokens before the patches
    patch: int  # pixels from one patch to the next

    def heads(self, layer: int) -> Floats:
        """Where each head of a layer looks, from the token that decides. [h r c]"""
        return self._on_grid(self.weights[layer])

    def rollout(self) -> Floats:
        """How much of each patch has flowed into what decides, through all layers. [r c]"""
        return self._on_grid(rolled_out(self.weights)[None])[0]

    def distances(self) -> Floats:
        """How far each head looks on average, in pixels. [l h] [dosovitskiy2021 fig.7]"""
        rows, columns = np.divmod(np.arange(self.grid[0] * self.grid[1]), self.grid[1])
        apart = np.hypot(rows[:, None] - rows, columns[:, None] - columns) * self.patch  # [q k]
        among = self.weights[:, :, self.prefix :, self.prefix :]
        shares = among / among.sum(-1, keepdims=True).clip(1e-12)
        far: Floats = (shares * apart).sum(-1).mean(-1).astype(np.float32)
        return far

    def _on_grid(self, weights: Floats) -> Floats:
        """Rows of the token that decides, or without one the mean of all, over the patches. [… q k] → [… r c]"""
        rows = weights[..., 0, :] if self.prefix else weights.mean(-2)
        on_patches: Floats = rows[..., self.prefix :].reshape(*weights.shape[:-2], *self.grid)
        return on_patches


def record_picture(use: ImageReader, source: Source) -> PictureRecord:
    """Run a model once over a picture and keep every attention map."""
    model = use.model
    pixels = use.preprocessing.pixels(source)  # [3 h w]
    images = use.preprocessing.normalise(pixels)[None]
    weights, answer = kept_attention(model, images)
    said = likeliest(model.head_choice.labels, answer[0]) if isinstance(use, ImageClassifier) else ""
    return PictureRecord(
        shown_source(source),
        Image.fromarray(pixels.permute(1, 2, 0).numpy()),
        said,
        weights,
        model.embed.grid(images),
        len(model.embed.prefix),
        model.embed.stride,
    )


def kept_attention(model: nn.Module, given: Tensor) -> tuple[Floats, Any]:
    """Every attention map of one row [l h q k], and what the model answers."""
    ledger = Ledger(model, keep={"weights"})
    with at_rest(model):
        answer = model(given.to(next(model.parameters()).device), ledger=ledger)
    written = [each for name, each in ledger.entries.items() if name.endswith("/weights")]
    if not written:
        raise QkvError("This model wrote no attention weights, so there is nothing to look at.")
    return torch.stack([weight[0] for several in written for weight in several]).float().cpu().numpy(), answer


def likeliest(labels: Sequence[str], logits: Tensor) -> str:
    """The label that a model decides for, and its probability."""
    shares = logits.float().softmax(-1)
    return f"{labels[int(shares.argmax())]} {float(shares.max()):.1%}"


def rolled_out(weights: Floats) -> Floats:
    """Attention through all layers: the product of ½ (mean of heads) + ½ I of each. [l h q k] → [q k] [abnar2020 §3]"""
    here = np.eye(weights.shape[-1], dtype=np.float32)
    flow = here
    for layer in weights:
        flow = (layer.mean(0) / 2 + here / 2) @ flow
    return flow


def position_similarity(model: ImageModel) -> Floats:
    """The cosine of the angle between the positions of every two patches. [r c r c] [dosovitskiy2021 fig.7]"""
    position = model.embed.position
    learned = position.weight[position.prefix :].detach().float()
    unit = torch.nn.functional.normalize(learned, dim=-1)
    size = (position.rows, position.columns)
    alike: Floats = (unit @ unit.T).reshape(*size, *size).cpu().numpy()
    return alike


def patch_filters(model: ImageModel, count: int = COMPONENTS) -> Floats:
    """The principal components of what pixels are multiplied by first, the largest first. [count n p p]

    [dosovitskiy2021 fig.7]
    """
    filters = model.embed.filters.detach().float().cpu()  # [d n p p]
    flat = filters.flatten(1)
    components = torch.linalg.svd(flat - flat.mean(0), full_matrices=False).Vh
    found: Floats = components[:count].unflatten(1, filters.shape[1:]).numpy()
    return found
