"""What finds all objects of a picture at once: an encoder of its map, a decoder of object queries. [carion2020 §3.2]

Shapes: b pictures, c channels, h height, w width, r rows and k columns of the map, s = r·k tokens, n object queries,
d width of the stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.models.described import DESCRIBED
from qkv.models.head_choice import HeadChoice
from qkv.parts.attention.visibility import NotPadding, Tokens
from qkv.parts.context import Context, Ledger
from qkv.parts.convolution import ResNet
from qkv.parts.detection_heads import DetectionHead, Detections
from qkv.parts.position_2d import Sinusoidal2D
from qkv.parts.spec import Depends
from qkv.parts.stack import Stack


@dataclass(frozen=True, eq=False)
class Scene:
    """What an encoder made of pictures: the map, row by row, and where its tokens stand."""

    states: Tensor  # [b s d]
    tokens: Tokens
    position_vectors: Tensor  # [b s d]
    grid: tuple[int, int]


class DetectionModel(nn.Module):
    """picture → map → encoder; object queries → decoder → head."""

    depends_on = Depends("queries", "backbone", "project", "position", "encoder", "decoder", "head", unread=DESCRIBED)

    family: str  # what the model was built from, as `models.catalogue.build` notes it
    sizes: Any
    head_choice: HeadChoice

    def __init__(self, backbone: ResNet, encoder: Stack, decoder: Stack, head: nn.Module, width: int, queries: int):
        super().__init__()
        self.backbone, self.project = backbone, nn.Conv2d(backbone.outputs, width, 1)
        self.position = Sinusoidal2D(width)
        self.encoder, self.decoder, self.head = encoder, decoder, head
        self.queries = nn.Parameter(torch.randn(queries, width))  # [n d]

    def forward(self, images: Tensor, *, pixel_mask: Tensor | None = None, ledger: Ledger | None = None) -> Any:
        """What the head makes of pictures [b c h w]; `pixel_mask` [b h w] is False on padding."""
        scene = self.encode(images, pixel_mask=pixel_mask, ledger=ledger)
        x, ctx = self._start(scene, ledger)
        return self.head(self.decoder(x, ctx), ctx)

    def every_layer(
        self, images: Tensor, *, pixel_mask: Tensor | None = None, ledger: Ledger | None = None
    ) -> list[Detections]:
        """What the head makes of each layer of the decoder, the last one last: all of them learn. [carion2020 §3.2]"""
        if not isinstance(self.head, DetectionHead):
            raise QkvError(f"Layers are asked for objects, and this model has a {self.head_choice.kind} head.")
        x, ctx = self._start(self.encode(images, pixel_mask=pixel_mask, ledger=ledger), ledger)
        return [self.head(states, ctx) for states in self.decoder.after_each(x, ctx)]

    def encode(self, images: Tensor, *, pixel_mask: Tensor | None = None, ledger: Ledger | None = None) -> Scene:
        """The pictures as the decoder reads them."""
        features = self.project(self.backbone(images))  # [b d r k]
        rows, columns = features.shape[2:]
        real, documents = features.new_ones(len(images), rows, columns, dtype=torch.bool), None
        if pixel_mask is not None:
            expected = (len(images), *images.shape[2:])
            if pixel_mask.shape != expected:
                raise QkvError(f"A pixel mask has one entry a pixel, {list(expected)}, not {list(pixel_mask.shape)}.")
            real = F.interpolate(pixel_mask[None].float(), size=(rows, columns))[0] > 0  # [b r k], the nearest pixel's
            documents = real.flatten(1).long()
        positions = self.position(real).to(features.dtype)
        tokens = Tokens(rows * columns, documents=documents)
        ctx = Context(
            tokens=tokens,
            visibility=NotPadding(),
            position_vectors=positions,
            grid=(rows, columns),
            ledger=ledger,
        )
        states = self.encoder(features.flatten(2).transpose(1, 2), ctx)  # [b s d]
        return Scene(states, tokens, positions, (rows, columns))

    def _start(self, scene: Scene, ledger: Ledger | None) -> tuple[Tensor, Context]:
        """Nothing is known of any object yet: zeros, with the queries as their positions. [carion2020 §A.3]"""
        ctx = Context(
            tokens=Tokens(len(self.queries)),
            visibility=NotPadding(),
            position_vectors=self.queries,
            memory=scene.states,
            memory_tokens=scene.tokens,
            memory_position_vectors=scene.position_vectors,
            ledger=ledger,
        )
        return self.queries.new_zeros(len(scene.states), *self.queries.shape), ctx
