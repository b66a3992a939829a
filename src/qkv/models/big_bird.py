"""BigBird: a BERT of long texts, whose blocks of tokens see their neighbours, both ends and some at random.
[zaheer2020]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from qkv.models.family import Family
from qkv.models.head_choice import HeadChoice, make_head
from qkv.models.initial import initialise_normal
from qkv.models.text_model import TextModel
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.big_bird import BlockAttention
from qkv.parts.block import Block
from qkv.parts.embed import Embed, TokenEmbedding
from qkv.parts.feedforward import MLP, find_activation
from qkv.parts.heads import LogitHead, MaskedHead, PooledStatesHead, PretrainingHead, TiedHead
from qkv.parts.norm import LayerNorm
from qkv.parts.pool import DensePool, FirstToken
from qkv.parts.position import Learned
from qkv.parts.residual import PostNorm
from qkv.parts.stack import Stack

HEADS = ("pretraining", "masked", "pooled", "states", "classification", "tokens", "embedding")


@dataclass(frozen=True, kw_only=True)
class BigBirdSizes:
    vocabulary: int
    positions: int  # the longest text
    segments: int = 2  # texts that can be told apart in one row
    width: int
    hidden: int
    heads: int
    layers: int
    block: int | None = 64  # tokens of a block; None: all tokens see each other, however long a text
    randoms: int = 3  # blocks at random that each sees
    projection_bias: bool = True  # of queries, keys and values
    scaled: bool = False  # token vectors times √width
    activation: str = "gelu_tanh"
    epsilon: float = 1e-12  # of the norms
    dropout: float = 0.1  # of what each sub-layer adds, and of the embeddings
    attention_dropout: float = 0.1
    classifier_dropout: float | None = None  # before a decision; None: as `dropout`
    tied: bool = True  # one matrix for input and output [press2017 §3]


def _published(width: int, layers: int, heads: int) -> BigBirdSizes:
    return BigBirdSizes(vocabulary=50358, positions=4096, width=width, hidden=4 * width, heads=heads, layers=layers)


SIZES = {"base": _published(768, 12, 12), "large": _published(1024, 24, 16)}


def big_bird(sizes: BigBirdSizes, head: HeadChoice) -> TextModel:
    width, dropout = sizes.width, sizes.dropout
    activation = find_activation(sizes.activation)
    norm = partial(LayerNorm, width, sizes.epsilon)
    decision_dropout = dropout if sizes.classifier_dropout is None else sizes.classifier_dropout

    def attention(layer: int) -> nn.Module:
        bias, weights_dropout = sizes.projection_bias, sizes.attention_dropout
        if sizes.block is None:
            return Attention(width, sizes.heads, bias=bias, out_bias=True, dropout=weights_dropout)
        return BlockAttention(
            width,
            sizes.heads,
            block=sizes.block,
            randoms=sizes.randoms,
            seed=layer,
            bias=bias,
            out_bias=True,
            dropout=weights_dropout,
        )

    def block(layer: int) -> Block:
        return Block(
            attention=PostNorm(norm(), attention(layer), dropout),
            feed_forward=PostNorm(norm(), MLP(width, sizes.hidden, activation), dropout),
        )

    def pool() -> DensePool:
        return DensePool(FirstToken(), width, torch.tanh)

    def masked() -> MaskedHead:
        logits = TiedHead(tokens, bias=True) if sizes.tied else LogitHead(width, sizes.vocabulary, bias=True)
        return MaskedHead(width, width, activation, norm(), logits)

    tokens = TokenEmbedding(sizes.vocabulary, width, width**0.5 if sizes.scaled else 1.0)
    segments = TokenEmbedding(sizes.segments, width)
    model = TextModel(
        embed=Embed(tokens, Learned(sizes.positions, width), dropout, segments=segments, norm=norm()),
        stack=Stack([block(layer) for layer in range(sizes.layers)]),
        head=make_head(
            head,
            width,
            {
                "pretraining": lambda: PretrainingHead(masked(), pool(), width),
                "masked": masked,
                "pooled": lambda: PooledStatesHead(pool()),
            },
            pool=lambda: DensePool(FirstToken(), width, activation, decision_dropout),
            dropout=decision_dropout,
            kinds=HEADS,
        ),
        longest=sizes.positions,
    )
    initialise_normal(model)
    return model


FAMILIES = (
    Family(
        "big-bird",
        "a BERT of long texts, whose blocks look nearby, at both ends and at some at random",
        BigBirdSizes,
        big_bird,
        SIZES,
        HEADS,
    ),
)
