"""GPT-2: a decoder alone, norm before each sub-layer, positions learned. [radford2019 §2.3]"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

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
from qkv.parts.residual import PreNorm
from qkv.parts.stack import Stack

JITTER = 0.01  # of what routers read in training, where there are experts [fedus2022 §2.2]


@dataclass(frozen=True, kw_only=True)
class GPT2Sizes:
    """Those of GPT-2, and of the same with experts."""

    vocabulary: int
    positions: int  # the longest text
    width: int
    hidden: int
    heads: int
    layers: int
    activation: str = "gelu_tanh"
    epsilon: float = 1e-5  # of the norms
    dropout: float = 0.1  # of what each sub-layer adds
    embedding_dropout: float = 0.1
    attention_dropout: float = 0.1
    tied: bool = True  # one matrix for input and output [press2017 §3]
    experts: int | None = None  # in every other block, in place of its feed-forward [fedus2022 §2]


def _published(width: int, layers: int, heads: int) -> GPT2Sizes:
    return GPT2Sizes(vocabulary=50257, positions=1024, width=width, hidden=4 * width, heads=heads, layers=layers)


# [radford2019 tab.2], which counts their parameters with the vocabulary of GPT-1
SIZES = {
    "base": _published(768, 12, 12),
    "medium": _published(1024, 24, 16),
    "large": _published(1280, 36, 20),
    "xl": _published(1600, 48, 25),
}


def gpt2(sizes: GPT2Sizes, head: HeadChoice) -> TextModel:
    width = sizes.width
    norm = partial(LayerNorm, width, sizes.epsilon)

    def feed_forward(layer: int) -> nn.Module:
        activation = find_activation(sizes.activation)
        if sizes.experts is None or layer % 2 == 0:
            return MLP(width, sizes.hidden, activation)
        from qkv.parts.experts import Experts
        from qkv.parts.routing import Router

        return Experts(width, sizes.hidden, Router(width, sizes.experts, jitter=JITTER), activation)

    def block(layer: int) -> Block:
        attention = Attention(width, sizes.heads, visibility=Causal(), dropout=sizes.attention_dropout)
        return Block(
            attention=PreNorm(norm(), attention, sizes.dropout),
            feed_forward=PreNorm(norm(), feed_forward(layer), sizes.dropout),
        )

    tokens = TokenEmbedding(sizes.vocabulary, width)
    language = partial(TiedHead, tokens) if sizes.tied else partial(LogitHead, width, sizes.vocabulary)
    model = TextModel(
        embed=Embed(tokens, Learned(sizes.positions, width), sizes.embedding_dropout),
        stack=Stack([block(layer) for layer in range(sizes.layers)], norm()),
        head=make_head(head, width, {"language": language}, pool=LastToken, dropout=sizes.dropout, bias=False),
        longest=sizes.positions,
    )
    initialise(model, sizes.layers)
    return model


def initialise(model: TextModel, layers: int) -> None:
    """N(0, 0.02) for every matrix, and for those that write to the stream 1/√(2·layers) of it. [radford2019 §2.3]

    The deviation is that of the published code; the paper has the factor 1/√N for N residual layers.
    """
    initialise_normal(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("mixer.out.weight", "mixer.outer.weight")):
                parameter.mul_((2 * layers) ** -0.5)


FAMILIES = (Family("gpt2", "a decoder alone, norm before each sub-layer", GPT2Sizes, gpt2, SIZES, DECODER_HEADS),)
