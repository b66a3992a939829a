"""DistilBERT: every other layer of a BERT, taught by the whole of it; no segments and no pooler. [sanh2019 §3]"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from qkv.models.family import ENCODER_HEADS, Family
from qkv.models.head_choice import HeadChoice, make_head
from qkv.models.initial import initialise_normal
from qkv.models.text_model import TextModel
from qkv.parts.attention.attention import Attention
from qkv.parts.block import Block
from qkv.parts.embed import Embed, TokenEmbedding
from qkv.parts.feedforward import MLP, find_activation, relu
from qkv.parts.heads import LogitHead, MaskedHead, TiedHead, TokenHead
from qkv.parts.norm import LayerNorm
from qkv.parts.pool import DensePool, FirstToken
from qkv.parts.position import Learned
from qkv.parts.residual import PostNorm
from qkv.parts.stack import Stack

EPSILON = 1e-12  # of the norms


@dataclass(frozen=True, kw_only=True)
class DistilBertSizes:
    vocabulary: int
    positions: int  # the longest text
    width: int
    hidden: int
    heads: int
    layers: int
    activation: str = "gelu"
    dropout: float = 0.1  # of what each feed-forward adds, and of the embeddings
    attention_dropout: float = 0.1
    classifier_dropout: float = 0.2  # before a decision about a text
    span_dropout: float = 0.1  # before one about the ends of an answer
    tied: bool = True  # one matrix for input and output [press2017 §3]


SIZES = {
    "base": DistilBertSizes(vocabulary=30522, positions=512, width=768, hidden=3072, heads=12, layers=6),
}


def distilbert(sizes: DistilBertSizes, head: HeadChoice) -> TextModel:
    width = sizes.width
    activation = find_activation(sizes.activation)
    norm = partial(LayerNorm, width, EPSILON)

    def block() -> Block:
        return Block(  # DIFFERS [devlin2019]: as published, no dropout falls on what attention adds
            attention=PostNorm(norm(), Attention(width, sizes.heads, dropout=sizes.attention_dropout)),
            feed_forward=PostNorm(norm(), MLP(width, sizes.hidden, activation), sizes.dropout),
        )

    def masked() -> MaskedHead:
        logits = TiedHead(tokens, bias=True) if sizes.tied else LogitHead(width, sizes.vocabulary, bias=True)
        return MaskedHead(width, width, activation, norm(), logits)

    tokens = TokenEmbedding(sizes.vocabulary, width)
    model = TextModel(
        embed=Embed(tokens, Learned(sizes.positions, width), sizes.dropout, norm=norm()),
        stack=Stack([block() for _ in range(sizes.layers)]),
        head=make_head(
            head,
            width,
            {
                "masked": masked,
                "tokens": lambda: TokenHead(width, len(head.labels), sizes.dropout),
                "spans": lambda: TokenHead(width, 2, sizes.span_dropout),
            },
            pool=lambda: DensePool(FirstToken(), width, relu),
            dropout=sizes.classifier_dropout,
        ),
        longest=sizes.positions,
    )
    initialise_normal(model)
    return model


FAMILIES = (
    Family(
        "distilbert",
        "half a BERT, taught by the whole",
        DistilBertSizes,
        distilbert,
        SIZES,
        ENCODER_HEADS,
    ),
)
