"""DeiT: a ViT with a second token of its own, which learns from a teacher. [touvron2021 §4]"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from qkv.models.family import Family
from qkv.models.head_choice import HeadChoice, make_head
from qkv.models.image_model import ImageModel
from qkv.models.initial import initialise_normal
from qkv.models.vit import CLASS_TOKEN, PatchSizes, encoder, image_pools, patch_embed
from qkv.parts.heads import DistilledHead, PooledStatesHead
from qkv.parts.pool import DensePool, FirstToken

PREFIX = (CLASS_TOKEN, "distillation_token")
HEADS = ("states", "pooled", "distilled", "classification", "embedding")


@dataclass(frozen=True, kw_only=True)
class DeiTSizes(PatchSizes):
    """Those of a ViT whose class token decides, alone or with the distillation token: the head says which."""


def _published(width: int, heads: int, image: int = 224) -> DeiTSizes:
    return DeiTSizes(
        image=image, patch=16, width=width, hidden=4 * width, heads=heads, layers=12, path_dropout=0.1
    )  # [touvron2021 tab.9]


# [touvron2021 tab.1]
SIZES = {
    "base": _published(768, 12),
    "small": _published(384, 6),
    "tiny": _published(192, 3),
    "base-384": _published(768, 12, 384),
}


def deit(sizes: DeiTSizes, head: HeadChoice) -> ImageModel:
    width = sizes.width
    model = ImageModel(
        embed=patch_embed(sizes, PREFIX),
        stack=encoder(sizes),
        head=make_head(
            head,
            width,
            {
                "pooled": lambda: PooledStatesHead(DensePool(FirstToken(), width, torch.tanh)),
                "distilled": lambda: DistilledHead(width, len(head.labels)),
            },
            pool=FirstToken,
            kinds=HEADS,
            pools=image_pools(PREFIX),
        ),
    )
    initialise_normal(model)
    return model


FAMILIES = (
    Family(
        "deit",
        "a ViT with a second token, which learns from a teacher",
        DeiTSizes,
        deit,
        SIZES,
        HEADS,
        "images",
    ),
)
