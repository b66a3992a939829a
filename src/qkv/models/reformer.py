"""Reformer: a decoder of very long rows, whose layers read near tokens and hashed ones in turn. [kitaev2020]

Layers are reversible, so that memory does not grow with their number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from torch import nn

from qkv.errors import QkvError
from qkv.models.family import Family
from qkv.models.head_choice import HeadChoice, make_head
from qkv.models.initial import initialise_normal
from qkv.models.text_model import TextModel
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.kernels.lsh import LSHKernel
from qkv.parts.attention.shared import SharedAttention
from qkv.parts.attention.visibility import Causal, Chunks
from qkv.parts.axial import Axial
from qkv.parts.block import Block
from qkv.parts.embed import Embed, TokenEmbedding
from qkv.parts.feedforward import MLP, ChunkedMLP, find_activation
from qkv.parts.heads import LogitHead
from qkv.parts.norm import LayerNorm
from qkv.parts.pool import LastToken
from qkv.parts.position import Learned
from qkv.parts.residual import PreNorm
from qkv.parts.reversible import ReversibleStack

HEADS = ("language", "states", "classification", "tokens", "spans")
Seed = int  # any whole number, 0 too


@dataclass(frozen=True, kw_only=True)
class ReformerSizes:
    vocabulary: int
    positions: int  # the longest text
    lines: int | None = None  # of the grid of axial positions; None: each position is learned by itself
    columns: int | None = None
    line_width: int | None = None  # how much of the width says the line; the rest says the column
    width: int  # of each of the two streams; the head reads both
    hidden: int
    heads: int
    head_width: int
    layers: int
    sights: str = "local lsh"  # what the layers read, one after the other and then again from the first
    local_chunk: int = 64
    local_before: int = 1  # chunks before its own that a token of a local layer sees
    lsh_chunk: int = 64
    lsh_before: int = 1
    rounds: int = 1  # of hashing
    buckets: tuple[int, ...] | None = None  # their number, in factors; None: as many as suit a row
    seed: Seed | None = None  # of the rotations, so that a test can repeat them; None: drawn anew
    feed_forward_chunk: int | None = None  # slots at a time; None: all
    activation: str = "relu"
    epsilon: float = 1e-12  # of the norms
    dropout: float = 0.05  # of embeddings, of what each sub-layer adds, of hidden units, and of what leaves the stack
    local_dropout: float = 0.05  # of attention weights
    lsh_dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.buckets is not None:
            if not isinstance(self.buckets, list | tuple) or not all(type(each) is int for each in self.buckets):
                raise QkvError(f"The size buckets of family reformer must be whole numbers, but is {self.buckets!r}.")
            object.__setattr__(self, "buckets", tuple(self.buckets) or None)
        if self.seed is not None and type(self.seed) is not int:
            raise QkvError(f"The size seed of family reformer must be a whole number, but is {self.seed!r}.")
        if len({each is None for each in (self.lines, self.columns, self.line_width)}) > 1:
            raise QkvError("Axial positions need lines, columns and line_width, and other positions none of them.")


SIZES = {
    "crime-and-punishment": ReformerSizes(
        vocabulary=320, positions=524_288, lines=512, columns=1024, line_width=64, width=256, hidden=512, heads=2,
        head_width=64, layers=6, buckets=(64, 128),
    ),
    "enwik8": ReformerSizes(
        vocabulary=258, positions=65_536, lines=128, columns=512, line_width=256, width=1024, hidden=4096, heads=8,
        head_width=128, layers=12, sights="local local lsh local", local_chunk=128, lsh_chunk=256, rounds=4,
        buckets=(512,), dropout=0.2, local_dropout=0.2, lsh_dropout=0.1,
    ),
}  # fmt: skip


def reformer(sizes: ReformerSizes, head: HeadChoice) -> TextModel:
    width, dropout = sizes.width, sizes.dropout
    norm = partial(LayerNorm, width, sizes.epsilon)
    sights = sights_of_layers(sizes)
    chunks = [{"local": sizes.local_chunk, "lsh": sizes.lsh_chunk}[sight] for sight in set(sights)]

    def attention(sight: str) -> nn.Module:
        if sight == "local":
            near = Causal() & Chunks(sizes.local_chunk, sizes.local_before)
            return Attention(
                width,
                sizes.heads,
                key_width=sizes.head_width,
                bias=False,
                visibility=near,
                dropout=sizes.local_dropout,
            )
        return SharedAttention(
            width,
            sizes.heads,
            key_width=sizes.head_width,
            bias=False,
            visibility=Causal(),
            kernel=kernel(),
            dropout=sizes.lsh_dropout,
        )

    def kernel() -> LSHKernel:
        return LSHKernel(
            chunk=sizes.lsh_chunk,
            rounds=sizes.rounds,
            buckets=sizes.buckets,
            before=sizes.lsh_before,
            seed=sizes.seed,
            fill=math.lcm(*chunks),
            whole=min(chunks),
        )

    def feed_forward() -> nn.Module:
        activation, chunk = find_activation(sizes.activation), sizes.feed_forward_chunk
        if chunk is None:
            return MLP(width, sizes.hidden, activation, dropout=dropout)
        return ChunkedMLP(width, sizes.hidden, activation, chunk=chunk, dropout=dropout)

    def block(sight: str) -> Block:
        return Block(
            attention=PreNorm(norm(), attention(sight), dropout), feed_forward=PreNorm(norm(), feed_forward(), dropout)
        )

    model = TextModel(
        embed=Embed(TokenEmbedding(sizes.vocabulary, width), _position(sizes), dropout),
        stack=ReversibleStack([block(sight) for sight in sights], LayerNorm(2 * width, sizes.epsilon), dropout),
        head=make_head(
            head,
            2 * width,
            {"language": partial(LogitHead, 2 * width, sizes.vocabulary)},
            pool=LastToken,
            dropout=dropout,
            kinds=HEADS,
        ),
        longest=sizes.positions if sizes.lines is None else min(sizes.positions, sizes.lines * (sizes.columns or 0)),
    )
    initialise_normal(model)
    return model


def sights_of_layers(sizes: ReformerSizes) -> list[str]:
    """What each layer reads."""
    names = sizes.sights.split()
    if not names or not set(names) <= {"local", "lsh"}:
        raise QkvError(f"The sights of Reformer's layers are words local and lsh, not {sizes.sights!r}.")
    return [names[layer % len(names)] for layer in range(sizes.layers)]


def _position(sizes: ReformerSizes) -> nn.Module:
    if sizes.lines is None or sizes.columns is None or sizes.line_width is None:
        return Learned(sizes.positions, sizes.width)
    if sizes.line_width >= sizes.width:
        raise QkvError(
            f"Of a width of {sizes.width}, {sizes.line_width} cannot say the line: the column needs a part of it too."
        )
    return Axial((sizes.lines, sizes.columns), (sizes.line_width, sizes.width - sizes.line_width))


FAMILIES = (
    Family(
        "reformer",
        "a decoder of very long texts, which reads what is near and what is hashed alike",
        ReformerSizes,
        reformer,
        SIZES,
        HEADS,
    ),
)
