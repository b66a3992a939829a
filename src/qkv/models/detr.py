"""DETR: objects as a set, found by a Transformer over the map of a residual network. [carion2020]"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import nn

from qkv.errors import QkvError
from qkv.models.detection_model import DetectionModel
from qkv.models.family import Family
from qkv.models.head_choice import HeadChoice, make_head
from qkv.parts.attention.attention import Attention, CrossAttention
from qkv.parts.block import Block
from qkv.parts.convolution import ResNet, find_block, find_norm
from qkv.parts.detection_heads import DetectionHead
from qkv.parts.feedforward import MLP, find_activation
from qkv.parts.norm import LayerNorm
from qkv.parts.pool import MeanOfTokens
from qkv.parts.residual import PostNorm
from qkv.parts.stack import Stack

HEADS = ("states", "detection")


@dataclass(frozen=True, kw_only=True)
class DetrSizes:
    channels: int = 3
    stem: int = 64  # channels of the map that the first stage reads
    stage_widths: tuple[int, ...] = (256, 512, 1024, 2048)  # channels that leave each stage [he2016 tab.1]
    stage_depths: tuple[int, ...] = (3, 4, 6, 3)  # residual blocks of each stage
    residual: str = "bottleneck"  # or "basic"
    map_norm: str = "frozen"  # statistics of elsewhere, or "batch": learned here
    last_stride: int = 2  # of the last stage; 1: a finer map, DC5 [carion2020 §4]
    queries: int = 100  # most objects that are found in one picture
    width: int
    encoder_hidden: int
    decoder_hidden: int
    encoder_heads: int
    decoder_heads: int
    encoder_layers: int
    decoder_layers: int
    activation: str = "relu"
    dropout: float = 0.1  # of what each sub-layer adds
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("stage_widths", "stage_depths"):
            given = getattr(self, name)
            if not isinstance(given, list | tuple) or not all(type(each) is int and each > 0 for each in given):
                raise QkvError(f"The size {name} of family detr must be whole numbers above 0, but is {given!r}.")
            object.__setattr__(self, name, tuple(given))
        find_block(self.residual)


def _published(depths: tuple[int, ...] = (3, 4, 6, 3), last_stride: int = 2) -> DetrSizes:
    return DetrSizes(
        stage_depths=depths,
        last_stride=last_stride,
        width=256,
        encoder_hidden=2048,
        decoder_hidden=2048,
        encoder_heads=8,
        decoder_heads=8,
        encoder_layers=6,
        decoder_layers=6,
    )


# [carion2020 tab.1]
SIZES = {
    "resnet-50": _published(),
    "resnet-50-dc5": _published(last_stride=1),
    "resnet-101": _published((3, 4, 23, 3)),
    "resnet-101-dc5": _published((3, 4, 23, 3), last_stride=1),
}


def detr(sizes: DetrSizes, head: HeadChoice) -> DetectionModel:
    width = sizes.width
    norm = partial(LayerNorm, width)

    def step(mixer: nn.Module) -> PostNorm:
        return PostNorm(norm(), mixer, sizes.dropout)

    def feed_forward(hidden: int) -> PostNorm:
        return step(MLP(width, hidden, find_activation(sizes.activation), dropout=sizes.hidden_dropout))

    def encoder_block() -> Block:
        return Block(
            attention=step(Attention(width, sizes.encoder_heads, dropout=sizes.attention_dropout)),
            feed_forward=feed_forward(sizes.encoder_hidden),
        )

    def decoder_block() -> Block:
        return Block(
            attention=step(Attention(width, sizes.decoder_heads, dropout=sizes.attention_dropout)),
            cross=step(CrossAttention(width, sizes.decoder_heads, dropout=sizes.attention_dropout)),
            feed_forward=feed_forward(sizes.decoder_hidden),
        )

    backbone = ResNet(
        sizes.channels,
        sizes.stem,
        sizes.stage_widths,
        sizes.stage_depths,
        find_block(sizes.residual),
        find_norm(sizes.map_norm),
        sizes.last_stride,
    )
    own = {"detection": lambda: DetectionHead(width, len(head.labels))}
    return DetectionModel(
        backbone,
        Stack([encoder_block() for _ in range(sizes.encoder_layers)]),
        Stack([decoder_block() for _ in range(sizes.decoder_layers)], norm()),
        make_head(head, width, own, pool=MeanOfTokens, kinds=HEADS),
        width,
        sizes.queries,
    )


FAMILIES = (
    Family(
        "detr",
        "all objects of a picture at once, as a set",
        DetrSizes,
        detr,
        SIZES,
        HEADS,
        "images",
    ),
)
