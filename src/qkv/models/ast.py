"""AST: the filter bank of a sound as a picture, read by a DeiT whose patches overlap. [gong2021 §2]"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.models.family import Family
from qkv.models.head_choice import HeadChoice, make_head
from qkv.models.image_model import ImageModel
from qkv.models.initial import initialise_normal
from qkv.models.vit import CLASS_TOKEN, EncoderSizes, encoder, image_pools
from qkv.parts.heads import PooledStatesHead
from qkv.parts.norm import LayerNorm
from qkv.parts.patches import PatchEmbed, Patches
from qkv.parts.pool import MeanOfFirst, NormedPool
from qkv.parts.position import Learned2D, find_resampling

PREFIX = (CLASS_TOKEN, "distillation_token")
HEADS = ("classification", "pooled", "states", "embedding")


@dataclass(frozen=True, kw_only=True)
class ASTSizes(EncoderSizes):
    bands: int = 128  # mel bands: the height of the picture
    frames: int = 1024  # its width, that the positions are learned for
    patch: int = 16  # height and width of a patch
    frequency_stride: int = 10  # from one patch to the next
    time_stride: int = 10


# [gong2021 §2.2]: DeiT base
SIZES = {"base": ASTSizes(width=768, hidden=3072, heads=12, layers=12)}


def ast(sizes: ASTSizes, head: HeadChoice) -> ImageModel:
    """A model of pictures [b 1 bands frames]."""
    width = sizes.width

    def pool() -> MeanOfFirst:
        return MeanOfFirst(len(PREFIX))

    patches = Patches(1, width, sizes.patch, (sizes.frequency_stride, sizes.time_stride))
    grid = patches.grid(sizes.bands, sizes.frames)
    position = Learned2D(*grid, width, len(PREFIX), find_resampling(sizes.resampling))
    model = ImageModel(
        embed=PatchEmbed(patches, position, PREFIX, sizes.dropout),
        stack=encoder(sizes),
        head=make_head(
            head,
            width,
            {"pooled": lambda: PooledStatesHead(pool())},
            pool=lambda: NormedPool(pool(), LayerNorm(width, sizes.epsilon)),
            kinds=HEADS,
            pools=image_pools(PREFIX),
        ),
    )
    initialise_normal(model)
    return model


FAMILIES = (Family("ast", "a DeiT that reads the filter bank of a sound", ASTSizes, ast, SIZES, HEADS, "sound"),)
