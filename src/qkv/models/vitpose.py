"""ViTPose: a plain ViT over the picture of one person, and a head that draws a map of each keypoint. [xu2022]"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from qkv.errors import QkvError, nearest_or_all
from qkv.models.described import DESCRIBED
from qkv.models.family import Family
from qkv.models.head_choice import HeadChoice, make_head
from qkv.models.image_model import ImageModel
from qkv.models.initial import initialise_normal
from qkv.models.vit import EncoderSizes, encoder
from qkv.parts.context import Context, Ledger
from qkv.parts.detection_heads import HeatmapHead, PlainHeatmapHead
from qkv.parts.patches import PatchEmbed, Patches
from qkv.parts.pool import MeanOfPatches
from qkv.parts.position import Learned2D, Resample, find_resampling
from qkv.parts.spec import Depends

AROUND = 2  # zeros on each side of a picture, before it is cut into patches
HEADS = ("states", "keypoints")
DECODERS = ("deconvolved", "plain")


@dataclass(frozen=True, kw_only=True)
class ViTPoseSizes(EncoderSizes):
    image: int = 256  # height of the pictures that the positions are learned for
    image_width: int = 192
    patch: int = 16
    channels: int = 3
    decoder: str = "deconvolved"  # maps by two deconvolutions [xu2022 eq.2], or "plain": bilinear [xu2022 eq.3]
    decoder_width: int = 256  # channels of the deconvolutions

    def __post_init__(self) -> None:
        if self.decoder not in DECODERS:
            raise QkvError(
                f"There is no decoder of maps called {self.decoder}: {nearest_or_all(self.decoder, DECODERS)}"
            )


def _published(width: int, layers: int, heads: int) -> ViTPoseSizes:
    return ViTPoseSizes(width=width, hidden=4 * width, heads=heads, layers=layers)


# [xu2022 §4]; the small one was published later
SIZES = {
    "small": _published(384, 12, 12),
    "base": _published(768, 12, 12),
    "large": _published(1024, 24, 16),
    "huge": _published(1280, 32, 16),
}


class OffsetPositions(Learned2D):
    """Positions of a grid, and one vector that is added to all: a class token's, where there is no class token."""

    depends_on = Depends("rows", "columns", "prefix", "resample", "weight", "offset")

    def __init__(self, rows: int, columns: int, width: int, resample: Resample) -> None:
        super().__init__(rows, columns, width, prefix=0, resample=resample)
        self.offset = nn.Parameter(torch.randn(width) * 0.02)

    def forward(self, rows: int, columns: int) -> Tensor:
        """[rows·columns d]"""
        return super().forward(rows, columns) + self.offset


class PoseModel(ImageModel):
    """A model of pictures whose head knows how patches stand in them."""

    depends_on = Depends("embed", "stack", "head", unread=DESCRIBED)

    def context(self, images: Tensor, *, ledger: Ledger | None = None) -> Context:
        return replace(super().context(images, ledger=ledger), grid=self.embed.grid(images))


def vitpose(sizes: ViTPoseSizes, head: HeadChoice) -> PoseModel:
    patches = Patches(sizes.channels, sizes.width, sizes.patch, around=AROUND)
    grid = patches.grid(sizes.image, sizes.image_width)
    positions = OffsetPositions(*grid, sizes.width, find_resampling(sizes.resampling))
    points = len(head.labels)

    def heatmaps() -> nn.Module:
        if sizes.decoder == "plain":
            return PlainHeatmapHead(sizes.width, points)
        return HeatmapHead(sizes.width, points, sizes.decoder_width)

    model = PoseModel(
        embed=PatchEmbed(patches, positions, dropout=sizes.dropout),
        stack=encoder(sizes),
        head=make_head(head, sizes.width, {"keypoints": heatmaps}, pool=MeanOfPatches, kinds=HEADS),
    )
    initialise_normal(model)
    return model


FAMILIES = (
    Family(
        "vitpose",
        "a ViT that draws a map of each keypoint",
        ViTPoseSizes,
        vitpose,
        SIZES,
        HEADS,
        "images",
    ),
)
