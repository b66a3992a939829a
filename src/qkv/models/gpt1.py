"""GPT-1: the decoder of the 2017 Transformer alone, norm after each sub-layer, positions learned. [radford2018 §4.1]"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from qkv.models.family import DECODER_HEADS, Family
from qkv.models.head_choice import HeadChoice, make_head
from qkv.models.initial import initialise_normal
from qkv.models.text_model import TextModel
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.visibility import Causal
from qkv.parts.block import Block
from qkv.parts.embed import Embed, TokenEmbedding
from qkv.parts.feedforward import MLP, find_activation
from qkv.parts.heads import LogitHead, TiedHead
from qkv.parts.norm import LayerNorm
from qkv.parts.pool import LastToken
from qkv.parts.position import Learned
from qkv.parts.residual import PostNorm
from qkv.parts.stack import Stack


@dataclass(frozen=True, kw_only=True)
class GPT1Sizes:
    vocabulary: int
    positions: int  # the longest text
    width: int  # the hidden units of the feed-forward are four times as many
    heads: int
    layers: int
    activation: str = "gelu_tanh"
    epsilon: float = 1e-5  # of the norms
    dropout: float = 0.1  # of what each sub-layer adds
    embedding_dropout: float = 0.1
    attention_dropout: float = 0.1
    tied: bool = True  # one matrix for input and output [press2017 §3]


# 40,000 merges and what they start from [radford2018 §4.1]
SIZES = {"base": GPT1Sizes(vocabulary=40478, positions=512, width=768, heads=12, layers=12)}


def gpt1(sizes: GPT1Sizes, head: HeadChoice) -> TextModel:
    width = sizes.width
    norm = partial(LayerNorm, width, sizes.epsilon)

    def block() -> Block:
        attention = Attention(width, sizes.heads, visibility=Causal(), dropout=sizes.attention_dropout)
        feed_forward = MLP(width, 4 * width, find_activation(sizes.activation))
        return Block(
            attention=PostNorm(norm(), attention, sizes.dropout),
            feed_forward=PostNorm(norm(), feed_forward, sizes.dropout),
        )

    tokens = TokenEmbedding(sizes.vocabulary, width)
    language = partial(TiedHead, tokens) if sizes.tied else partial(LogitHead, width, sizes.vocabulary)
    model = TextModel(
        embed=Embed(tokens, Learned(sizes.positions, width), sizes.embedding_dropout),
        stack=Stack([block() for _ in range(sizes.layers)]),
        head=make_head(head, width, {"language": language}, pool=LastToken, dropout=sizes.dropout, bias=False),
        longest=sizes.positions,
    )
    initialise_normal(model)
    return model


FAMILIES = (Family("gpt1", "the first GPT, norm after each sub-layer", GPT1Sizes, gpt1, SIZES, DECODER_HEADS),)
