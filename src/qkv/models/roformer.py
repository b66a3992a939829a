"""RoFormer: a BERT whose positions are turned into queries and keys, and added nowhere. [su2021 §3.4]"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import nn

from qkv.models.family import ENCODER_HEADS, Family
from qkv.models.head_choice import HeadChoice, make_head
from qkv.models.initial import initialise_normal
from qkv.models.text_model import TextModel
from qkv.parts.attention.attention import Attention
from qkv.parts.block import Block
from qkv.parts.embed import Embed, TokenEmbedding
from qkv.parts.feedforward import MLP, find_activation
from qkv.parts.heads import LogitHead, MaskedHead, TiedHead
from qkv.parts.norm import LayerNorm
from qkv.parts.pool import DensePool, FirstToken
from qkv.parts.position import Rotary, rotary_rates, rotate_neighbours
from qkv.parts.residual import PostNorm
from qkv.parts.stack import Stack


@dataclass(frozen=True, kw_only=True)
class RoFormerSizes:
    vocabulary: int
    positions: int  # the longest text
    segments: int = 2  # texts that can be told apart in one row
    embedding: int  # width of the tables; projected to the stream's where it is another [lan2020 §3.1]
    width: int
    hidden: int
    heads: int
    layers: int
    activation: str = "gelu"
    epsilon: float = 1e-12  # of the norms
    dropout: float = 0.1  # of what each sub-layer adds, of the embeddings, and before a decision
    attention_dropout: float = 0.1
    tied: bool = True  # one matrix for input and output [press2017 §3]


# As published for Chinese, with words in the vocabulary.
SIZES = {
    "base": RoFormerSizes(vocabulary=50000, positions=1536, embedding=768, width=768, hidden=3072, heads=12, layers=12),
    "small": RoFormerSizes(vocabulary=50000, positions=512, embedding=384, width=384, hidden=1536, heads=6, layers=6),
}


def roformer(sizes: RoFormerSizes, head: HeadChoice) -> TextModel:
    width, narrow, dropout = sizes.width, sizes.embedding, sizes.dropout
    activation = find_activation(sizes.activation)
    norm = partial(LayerNorm, width, sizes.epsilon)
    rotary = Rotary(rotary_rates(width // sizes.heads), rotate_neighbours)

    def block() -> Block:
        attention = Attention(width, sizes.heads, rotary=rotary, dropout=sizes.attention_dropout)
        return Block(
            attention=PostNorm(norm(), attention, dropout),
            feed_forward=PostNorm(norm(), MLP(width, sizes.hidden, activation), dropout),
        )

    def masked() -> MaskedHead:
        logits = TiedHead(tokens, bias=True) if sizes.tied else LogitHead(narrow, sizes.vocabulary, bias=True)
        return MaskedHead(width, narrow, activation, LayerNorm(narrow, sizes.epsilon), logits)

    tokens = TokenEmbedding(sizes.vocabulary, narrow)
    model = TextModel(
        embed=Embed(
            tokens,
            dropout=dropout,
            segments=TokenEmbedding(sizes.segments, narrow),
            norm=LayerNorm(narrow, sizes.epsilon),
            project=None if narrow == width else nn.Linear(narrow, width),
        ),
        stack=Stack([block() for _ in range(sizes.layers)]),
        head=make_head(
            head,
            width,
            {"masked": masked},
            pool=lambda: DensePool(FirstToken(), width, activation, dropout),
            dropout=dropout,
        ),
        longest=sizes.positions,
    )
    initialise_normal(model)
    return model


FAMILIES = (
    Family(
        "roformer",
        "a BERT with rotary positions",
        RoFormerSizes,
        roformer,
        SIZES,
        ENCODER_HEADS,
    ),
)
