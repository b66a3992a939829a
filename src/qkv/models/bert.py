"""BERT: an encoder alone, which reads a text or a pair of texts in both directions. [devlin2019 §3]"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

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
class BertSizes:
    """Those of BERT."""

    vocabulary: int
    positions: int  # the longest text
    segments: int = 2  # texts that can be told apart in one row
    width: int
    hidden: int
    heads: int
    layers: int
    activation: str = "gelu"
    epsilon: float = 1e-12  # of the norms
    dropout: float = 0.1  # of what each sub-layer adds, and of the embeddings
    attention_dropout: float = 0.1
    classifier_dropout: float | None = None  # before a decision; None: as `dropout`
    tied: bool = True  # one matrix for input and output [press2017 §3]


def _published(width: int, layers: int, heads: int) -> BertSizes:
    return BertSizes(vocabulary=30522, positions=512, width=width, hidden=4 * width, heads=heads, layers=layers)


# [devlin2019 §3], with the vocabulary of lower-case English
SIZES = {"base": _published(768, 12, 12), "large": _published(1024, 24, 16)}


def bert(sizes: BertSizes, head: HeadChoice) -> TextModel:
    width, dropout = sizes.width, sizes.dropout
    activation = find_activation(sizes.activation)
    norm = partial(LayerNorm, width, sizes.epsilon)

    def block() -> Block:
        return Block(
            attention=PostNorm(norm(), Attention(width, sizes.heads, dropout=sizes.attention_dropout), dropout),
            feed_forward=PostNorm(norm(), MLP(width, sizes.hidden, activation), dropout),
        )

    def pool() -> DensePool:
        return DensePool(FirstToken(), width, torch.tanh)

    def masked() -> MaskedHead:
        logits = TiedHead(tokens, bias=True) if sizes.tied else LogitHead(width, sizes.vocabulary, bias=True)
        return MaskedHead(width, width, activation, norm(), logits)

    tokens, segments = TokenEmbedding(sizes.vocabulary, width), TokenEmbedding(sizes.segments, width)
    model = TextModel(
        embed=Embed(tokens, Learned(sizes.positions, width), dropout, segments=segments, norm=norm()),
        stack=Stack([block() for _ in range(sizes.layers)]),
        head=make_head(
            head,
            width,
            {
                "pretraining": lambda: PretrainingHead(masked(), pool(), width),
                "masked": masked,
                "pooled": lambda: PooledStatesHead(pool()),
            },
            pool=pool,
            dropout=dropout if sizes.classifier_dropout is None else sizes.classifier_dropout,
        ),
        longest=sizes.positions,
    )
    initialise_normal(model)
    return model


FAMILIES = (Family("bert", "an encoder alone, which looks both ways", BertSizes, bert, SIZES, BERT_HEADS),)
