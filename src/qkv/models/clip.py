"""CLIP: an encoder of pictures and one of texts that learned from pictures with their captions. [radford2021 §2]

Each tower is a family of its own: Stable Diffusion reads texts with one, others look at pictures with the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from qkv.models.described import DESCRIBED
from qkv.models.family import Family
from qkv.models.head_choice import HeadChoice, make_head
from qkv.models.image_model import ImageModel
from qkv.models.image_text_model import ImageTextModel
from qkv.models.text_model import TextModel
from qkv.models.vit import CLASS_TOKEN, image_pools
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.visibility import Causal, Everything, NotPadding, Rule, Tokens
from qkv.parts.block import Block
from qkv.parts.embed import Embed, TokenEmbedding
from qkv.parts.feedforward import MLP, find_activation
from qkv.parts.heads import PooledStatesHead, ProjectionHead
from qkv.parts.norm import LayerNorm
from qkv.parts.patches import PatchEmbed, Patches
from qkv.parts.pool import FirstToken, LastToken, MeanOfPatches, NormedPool
from qkv.parts.position import Learned, Learned2D
from qkv.parts.residual import PreNorm
from qkv.parts.spec import Depends
from qkv.parts.stack import Stack

TEXT_HEADS = ("states", "pooled", "projection")
WITH_PADDING = Everything()
IMAGE_HEADS = ("states", "pooled", "projection", "classification", "embedding")


@dataclass(frozen=True, kw_only=True)
class TowerSizes:
    """Those that both towers have."""

    width: int
    hidden: int
    heads: int
    layers: int
    projection: int  # width of the space that pictures and texts share
    activation: str = "gelu_quick"
    epsilon: float = 1e-5  # of the norms
    attention_dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CLIPTextSizes(TowerSizes):
    vocabulary: int = 49408
    positions: int = 77  # the longest text
    end: int | None = 49407  # the token that ends a text; None: the largest of its row, as old files have it


@dataclass(frozen=True, kw_only=True)
class CLIPImageSizes(TowerSizes):
    image: int = 224  # height and width of the pictures that the positions are learned for
    patch: int
    channels: int = 3


@dataclass(frozen=True, kw_only=True)
class CLIPSizes:
    """Both towers side by side."""

    projection: int
    vocabulary: int = 49408
    positions: int = 77
    end: int | None = 49407
    text_width: int
    text_hidden: int
    text_heads: int
    text_layers: int
    text_activation: str = "gelu_quick"
    text_epsilon: float = 1e-5
    text_attention_dropout: float = 0.0
    image: int = 224
    patch: int
    channels: int = 3
    image_width: int
    image_hidden: int
    image_heads: int
    image_layers: int
    image_activation: str = "gelu_quick"
    image_epsilon: float = 1e-5
    image_attention_dropout: float = 0.0


OF_A_TOWER = ("width", "hidden", "heads", "layers", "activation", "epsilon", "attention_dropout")
OF_TEXT, OF_IMAGE = ("vocabulary", "positions", "end"), ("image", "patch", "channels")


def text_sizes(sizes: CLIPSizes) -> CLIPTextSizes:
    return CLIPTextSizes(**_tower(sizes, "text", OF_TEXT))


def image_sizes(sizes: CLIPSizes) -> CLIPImageSizes:
    return CLIPImageSizes(**_tower(sizes, "image", OF_IMAGE))


def _tower(sizes: CLIPSizes, tower: str, own: tuple[str, ...]) -> dict[str, Any]:
    shared = {name: getattr(sizes, f"{tower}_{name}") for name in OF_A_TOWER}
    return {**shared, **{name: getattr(sizes, name) for name in own}, "projection": sizes.projection}


def _published(text: tuple[int, int], image: tuple[int, int, int], patch: int, side: int = 224) -> CLIPSizes:
    """`text`: width and heads, `image`: width, heads and layers."""
    return CLIPSizes(
        projection=text[0],
        text_width=text[0],
        text_hidden=4 * text[0],
        text_heads=text[1],
        text_layers=12,
        image=side,
        patch=patch,
        image_width=image[0],
        image_hidden=4 * image[0],
        image_heads=image[1],
        image_layers=image[2],
    )


# [radford2021 tab.20]
SIZES = {
    "base-32": _published((512, 8), (768, 12, 12), 32),
    "base-16": _published((512, 8), (768, 12, 12), 16),
    "large-14": _published((768, 12), (1024, 16, 24), 14),
    "large-14-336": _published((768, 12), (1024, 16, 24), 14, 336),
}
IMAGE_SIZES = {name: image_sizes(sizes) for name, sizes in SIZES.items()}
TEXT_SIZES = {"base": text_sizes(SIZES["base-32"]), "large": text_sizes(SIZES["large-14"])}  # large: Stable Diffusion's


class ClipText(TextModel):
    """A text model that knows where a text ends by the token that ends it.

    What follows the end is read all the same, as in the published models, which were never told of padding: no token
    before it sees it, but others may build on the whole stream. With `lengths` or `tokens` it is hidden.
    """

    depends_on = Depends("embed", "stack", "head", "end", unread=DESCRIBED)

    def __init__(self, embed: Embed, stack: nn.Module, head: nn.Module, longest: int, end: int | None) -> None:
        super().__init__(embed, stack, head, longest)
        self.end = end

    def padding(self, ids: Tensor, visibility: Rule) -> tuple[Tokens, Rule]:
        tokens = Tokens.padded(self.ends(ids) + 1, ids.shape[1])
        return tokens, WITH_PADDING if isinstance(visibility, NotPadding) else visibility

    def ends(self, ids: Tensor) -> Tensor:
        """The slot of each text's end: the first token that ends it, or its last slot where none does. [b s] → [b]"""
        if self.end is None:
            return ids.argmax(1)
        ending = ids == self.end
        return torch.where(ending.any(1), ending.int().argmax(1), ids.shape[1] - 1)


def clip_text(sizes: CLIPTextSizes, head: HeadChoice) -> ClipText:
    width = sizes.width
    own = {
        "pooled": lambda: PooledStatesHead(LastToken()),
        "projection": lambda: ProjectionHead(LastToken(), width, sizes.projection),
    }
    model = ClipText(
        embed=Embed(TokenEmbedding(sizes.vocabulary, width), Learned(sizes.positions, width)),
        stack=Stack(_blocks(sizes, Causal()), LayerNorm(width, sizes.epsilon)),
        head=make_head(head, width, own, pool=LastToken, kinds=TEXT_HEADS),
        longest=sizes.positions,
        end=sizes.end,
    )
    initialise(model, sizes)
    return model


def clip_image(sizes: CLIPImageSizes, head: HeadChoice) -> ImageModel:
    width, prefix = sizes.width, (CLASS_TOKEN,)
    norm = partial(LayerNorm, width, sizes.epsilon)

    def pool() -> NormedPool:
        return NormedPool(FirstToken(), norm())

    patches = Patches(sizes.channels, width, sizes.patch, bias=False)
    position = Learned2D(*patches.grid(sizes.image, sizes.image), width, len(prefix))
    model = ImageModel(
        embed=PatchEmbed(patches, position, prefix, norm=norm()),
        stack=Stack(_blocks(sizes, None)),
        head=make_head(
            head,
            width,
            {
                "pooled": lambda: PooledStatesHead(pool()),
                "projection": lambda: ProjectionHead(pool(), width, sizes.projection),
            },
            pool=partial(MeanOfPatches, len(prefix)),
            kinds=IMAGE_HEADS,
            pools=image_pools(prefix),
        ),
    )
    initialise(model, sizes)
    return model


def clip(sizes: CLIPSizes) -> ImageTextModel:
    """Each tower knows what it is, so that it can be used and saved alone."""
    projection = HeadChoice("projection")
    image, text = clip_image(image_sizes(sizes), projection), clip_text(text_sizes(sizes), projection)
    image.family, image.sizes, image.head_choice = "clip-image", image_sizes(sizes), projection
    text.family, text.sizes, text.head_choice = "clip-text", text_sizes(sizes), projection
    return ImageTextModel(image, text)


def _blocks(sizes: TowerSizes, visibility: Rule | None) -> list[Block]:
    width = sizes.width
    norm = partial(LayerNorm, width, sizes.epsilon)

    def block() -> Block:
        attention = Attention(width, sizes.heads, visibility=visibility, dropout=sizes.attention_dropout)
        feed_forward = MLP(width, sizes.hidden, find_activation(sizes.activation))
        return Block(attention=PreNorm(norm(), attention), feed_forward=PreNorm(norm(), feed_forward))

    return [block() for _ in range(sizes.layers)]


def initialise(model: nn.Module, sizes: TowerSizes) -> None:
    """By the width of what a matrix reads; less for those that write to the stream, as in the published code."""
    narrow, writing = sizes.width**-0.5, (2 * sizes.width * sizes.layers) ** -0.5
    deviations = {
        "embed.tokens.weight": 0.02,
        "embed.position.weight": 0.01,
        "mixer.project.weight": narrow,
        "mixer.out.weight": writing,
        "mixer.inner.weight": (2 * sizes.width) ** -0.5,
        "mixer.outer.weight": writing,
        "head.out.weight": narrow,
    }
    for name, parameter in model.named_parameters():
        for ending, deviation in deviations.items():
            if name.endswith(ending):
                nn.init.normal_(parameter, std=deviation)
    for name, parameter in model.named_parameters():
        if name.endswith(("mixer.out.bias", "mixer.inner.bias", "mixer.outer.bias", "head.out.bias")):
            nn.init.zeros_(parameter)


FAMILIES = (
    Family(
        "clip",
        "pictures and texts in one space, where captions lie near what they describe",
        CLIPSizes,
        clip,
        SIZES,
        reads="images and text",
    ),
    Family(
        "clip-text",
        "the encoder of texts in CLIP, which Stable Diffusion reads with",
        CLIPTextSizes,
        clip_text,
        TEXT_SIZES,
        TEXT_HEADS,
    ),
    Family(
        "clip-image",
        "the encoder of pictures in CLIP",
        CLIPImageSizes,
        clip_image,
        IMAGE_SIZES,
        IMAGE_HEADS,
        "images",
    ),
)
