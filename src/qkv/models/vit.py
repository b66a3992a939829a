"""ViT: a picture cut into patches, and an encoder over them, norm before each sub-layer. [dosovitskiy2021 §3]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from qkv.data.patch_colours import colours
from qkv.errors import QkvError
from qkv.models.family import Family
from qkv.models.head_choice import HeadChoice, Pools, make_head
from qkv.models.image_model import ImageModel
from qkv.models.initial import initialise_normal
from qkv.parts.attention.attention import Attention
from qkv.parts.block import Block
from qkv.parts.feedforward import MLP, find_activation
from qkv.parts.heads import PatchHead, PooledStatesHead
from qkv.parts.norm import LayerNorm
from qkv.parts.patches import PatchEmbed, Patches
from qkv.parts.pool import DensePool, FirstToken, MeanOfPatches
from qkv.parts.position import Learned2D, find_resampling
from qkv.parts.residual import PreNorm, path_dropouts
from qkv.parts.stack import Stack
from qkv.parts.stem import ConvolutionStem

CLASS_TOKEN = "class_token"
# What stands for the whole picture: the tokens before its patches.
PREFIXES: dict[str, tuple[str, ...]] = {"class": (CLASS_TOKEN,), "mean": ()}
HEADS = ("states", "pooled", "classification", "embedding", "masked")


@dataclass(frozen=True, kw_only=True)
class EncoderSizes:
    """Those that all encoders of patches share."""

    width: int
    hidden: int
    heads: int
    layers: int
    resampling: str = "bicubic"  # how positions come to pictures of another size: bicubic, bicubic_antialiased
    activation: str = "gelu"
    epsilon: float = 1e-12  # of the norms
    query_bias: bool = True  # of queries, keys and values
    dropout: float = 0.0  # of what each sub-layer adds, and of the embeddings
    attention_dropout: float = 0.0
    path_dropout: float = 0.0  # of whole sub-layers, row by row, in the last layer [huang2016 eq.4]


@dataclass(frozen=True, kw_only=True)
class PatchSizes(EncoderSizes):
    """Those of square pictures cut into square patches."""

    image: int = 224  # height and width of the pictures that the positions are learned for
    patch: int
    channels: int = 3
    stem: int | None = None  # convolutions before the patches, which are then those of a map [xiao2021]


@dataclass(frozen=True, kw_only=True)
class ViTSizes(PatchSizes):
    pooling: str = "class"  # what decides: a class token, or without one the mean of all patches [dosovitskiy2021 §D.3]


def _published(width: int, layers: int, heads: int, patch: int) -> ViTSizes:
    return ViTSizes(patch=patch, width=width, hidden=4 * width, heads=heads, layers=layers)


# [dosovitskiy2021 tab.1]
SIZES = {
    "base-16": _published(768, 12, 12, 16),
    "base-32": _published(768, 12, 12, 32),
    "large-16": _published(1024, 24, 16, 16),
    "large-32": _published(1024, 24, 16, 32),
    "huge-14": _published(1280, 32, 16, 14),
}


def vit(sizes: ViTSizes, head: HeadChoice) -> ImageModel:
    if sizes.pooling not in PREFIXES:
        raise QkvError(f"A ViT decides by one of {', '.join(PREFIXES)}, not by {sizes.pooling!r}.")
    width, prefix = sizes.width, PREFIXES[sizes.pooling]
    pool = FirstToken if prefix else MeanOfPatches
    model = ImageModel(
        embed=patch_embed(sizes, prefix, hides=head.kind == "masked"),
        stack=encoder(sizes),
        head=make_head(
            head,
            width,
            {
                "pooled": lambda: PooledStatesHead(DensePool(pool(), width, torch.tanh)),
                "masked": lambda: PatchHead(width, len(prefix), colours(sizes.channels)),
            },
            pool=pool,
            kinds=HEADS,
            pools=image_pools(prefix),
        ),
    )
    initialise_normal(model)
    return model


def image_pools(prefix: Sequence[str]) -> Pools:
    """The ways to one vector a picture."""
    patches = partial(MeanOfPatches, len(prefix))
    return {"mean": patches, "first": FirstToken} if prefix else {"mean": patches}


def patch_embed(sizes: PatchSizes, prefix: Sequence[str], hides: bool = False) -> PatchEmbed:
    stem = None if sizes.stem is None else ConvolutionStem(sizes.channels, sizes.width, sizes.stem)
    patches = Patches(sizes.channels if stem is None else sizes.width, sizes.width, sizes.patch)
    side = (sizes.image, sizes.image) if stem is None else stem.size(sizes.image, sizes.image)
    position = Learned2D(*patches.grid(*side), sizes.width, len(prefix), find_resampling(sizes.resampling))
    return PatchEmbed(patches, position, prefix, sizes.dropout, stem=stem, hides=hides)


def encoder(sizes: EncoderSizes) -> nn.Module:
    width = sizes.width
    norm = partial(LayerNorm, width, sizes.epsilon)

    def block(path_dropout: float) -> Block:
        attention = Attention(width, sizes.heads, bias=sizes.query_bias, out_bias=True, dropout=sizes.attention_dropout)
        feed_forward = MLP(width, sizes.hidden, find_activation(sizes.activation))
        return Block(
            attention=PreNorm(norm(), attention, sizes.dropout, path_dropout=path_dropout),
            feed_forward=PreNorm(norm(), feed_forward, sizes.dropout, path_dropout=path_dropout),
        )

    return Stack([block(rate) for rate in path_dropouts(sizes.path_dropout, sizes.layers)], norm())


FAMILIES = (Family("vit", "an encoder of the patches of a picture", ViTSizes, vit, SIZES, HEADS, "images"),)
