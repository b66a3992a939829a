"""ALBERT: a BERT whose layers share their weights, and whose token table is narrow. [lan2020 §3.1]"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from qkv.errors import QkvError
from qkv.models.family import BERT_HEADS, Family
from qkv.models.head_choice import HeadChoice, make_head
from qkv.models.initial import initialise_normal
from qkv.models.text_model import TextModel
from qkv.parts.attention.attention import Attention
from qkv.parts.block import Block
from qkv.parts.embed import Embed, TokenEmbedding
from qkv.parts.feedforward import MLP, find_activation
from qkv.parts.heads import LogitHead, MaskedHead, PooledStatesHead, PretrainingHead, TiedHead
from qkv.parts.norm import LayerNorm
from qkv.parts.pool import DensePool, FirstToken
from qkv.parts.position import Learned
from qkv.parts.residual import PostNorm
from qkv.parts.stack import Stack


@dataclass(frozen=True, kw_only=True)
class AlbertSizes:
    vocabulary: int
    positions: int  # the longest text
    segments: int = 2  # texts that can be told apart in one row
    embedding: int  # width of the tables, from which the stream is projected
    width: int
    hidden: int
    heads: int
    layers: int  # how often the one layer runs; where there are groups, how often one of them does
    groups: int = 1  # sets of weights: those of the first layers, of the next ones, …
    group_layers: int = 1  # of each group, which run one after the other
    activation: str = "gelu_tanh"
    epsilon: float = 1e-12  # of the norms
    dropout: float = 0.0  # of what each sub-layer adds, and of the embeddings
    attention_dropout: float = 0.0
    classifier_dropout: float = 0.1  # before a decision
    tied: bool = True  # one matrix for input and output [press2017 §3]


def _published(width: int, layers: int, heads: int, activation: str, dropout: float) -> AlbertSizes:
    return AlbertSizes(
        vocabulary=30000,
        positions=512,
        embedding=128,
        width=width,
        hidden=4 * width,
        heads=heads,
        layers=layers,
        activation=activation,
        dropout=dropout,
        attention_dropout=dropout,
    )


# [lan2020 tab.1]; the second edition was trained longer, on more text and without dropout
SIZES = {
    "base": _published(768, 12, 12, "gelu", 0.1),
    "large": _published(1024, 24, 16, "gelu", 0.1),
    "xlarge": _published(2048, 24, 16, "gelu", 0.1),
    "xxlarge": _published(4096, 12, 64, "gelu", 0.0),
    "base-v2": _published(768, 12, 12, "gelu_tanh", 0.0),
    "large-v2": _published(1024, 24, 16, "gelu_tanh", 0.0),
    "xlarge-v2": _published(2048, 24, 16, "gelu_tanh", 0.0),
    "xxlarge-v2": _published(4096, 12, 64, "gelu_tanh", 0.0),
}


def running_order(sizes: AlbertSizes) -> list[int]:
    """Which block runs when: each group for its share of the layers, and in each of them all that the group has.

    Where the layers cannot be shared out evenly, some groups run once more than others, as in published models.
    """
    if sizes.groups > sizes.layers:
        raise QkvError(f"{sizes.groups} groups cannot share {sizes.layers} layers: give as many layers at least.")
    groups = [int(layer / (sizes.layers / sizes.groups)) for layer in range(sizes.layers)]
    return [group * sizes.group_layers + number for group in groups for number in range(sizes.group_layers)]


def albert(sizes: AlbertSizes, head: HeadChoice) -> TextModel:
    width, narrow, dropout = sizes.width, sizes.embedding, sizes.dropout
    activation = find_activation(sizes.activation)
    norm = partial(LayerNorm, width, sizes.epsilon)

    def pool() -> DensePool:
        return DensePool(FirstToken(), width, torch.tanh)

    def masked() -> MaskedHead:
        logits = TiedHead(tokens, bias=True) if sizes.tied else LogitHead(narrow, sizes.vocabulary, bias=True)
        return MaskedHead(width, narrow, activation, LayerNorm(narrow, sizes.epsilon), logits)

    def layer() -> Block:
        return Block(
            attention=PostNorm(norm(), Attention(width, sizes.heads, dropout=sizes.attention_dropout), dropout),
            feed_forward=PostNorm(norm(), MLP(width, sizes.hidden, activation), dropout),
        )

    tokens = TokenEmbedding(sizes.vocabulary, narrow)
    model = TextModel(
        embed=Embed(
            tokens,
            Learned(sizes.positions, narrow),
            dropout,
            segments=TokenEmbedding(sizes.segments, narrow),
            norm=LayerNorm(narrow, sizes.epsilon),
            project=nn.Linear(narrow, width),
        ),
        stack=Stack([layer() for _ in range(sizes.groups * sizes.group_layers)], order=running_order(sizes)),
        head=make_head(
            head,
            width,
            {
                "pretraining": lambda: PretrainingHead(masked(), pool(), width, sizes.classifier_dropout),
                "masked": masked,
                "pooled": lambda: PooledStatesHead(pool()),
            },
            pool=pool,
            dropout=sizes.classifier_dropout,
        ),
        longest=sizes.positions,
    )
    initialise_normal(model)
    return model


FAMILIES = (
    Family(
        "albert",
        "a BERT of one layer that runs again and again",
        AlbertSizes,
        albert,
        SIZES,
        BERT_HEADS,
    ),
)
