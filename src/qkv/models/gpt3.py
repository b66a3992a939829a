"""GPT-3: GPT-2 made larger, every other layer looking no further back than a band. [brown2020 §2.1]"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from qkv.models.family import DECODER_HEADS, Family
from qkv.models.gpt2 import initialise
from qkv.models.head_choice import HeadChoice, make_head
from qkv.models.text_model import TextModel
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.visibility import Causal, Window
from qkv.parts.block import Block
from qkv.parts.embed import Embed, TokenEmbedding
from qkv.parts.feedforward import MLP, gelu_tanh
from qkv.parts.heads import TiedHead
from qkv.parts.norm import LayerNorm
from qkv.parts.pool import LastToken
from qkv.parts.position import Learned
from qkv.parts.residual import PreNorm
from qkv.parts.stack import Stack


@dataclass(frozen=True, kw_only=True)
class GPT3Sizes:
    vocabulary: int
    positions: int  # the longest text
    width: int
    hidden: int
    heads: int
    head_width: int  # heads × head_width need not be the width
    layers: int
    window: int = 256  # tokens that every second layer sees, its own counted
    epsilon: float = 1e-5  # of the norms
    dropout: float = 0.0  # of what each sub-layer adds
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0


def _published(layers: int, width: int, heads: int, head_width: int) -> GPT3Sizes:
    return GPT3Sizes(
        vocabulary=50257,
        positions=2048,
        width=width,
        hidden=4 * width,
        heads=heads,
        head_width=head_width,
        layers=layers,
    )


# [brown2020 tab.2.1], which does not say how wide the band is: `window` is that of GPT-Neo.
# DIFFERS [brown2020]: the table gives the 1.3B model 24 heads of 128, which is 1.5B; 16 heads of 128 are 1.3B.
SIZES = {
    "125m": _published(12, 768, 12, 64),
    "350m": _published(24, 1024, 16, 64),
    "760m": _published(24, 1536, 16, 96),
    "1.3b": _published(24, 2048, 16, 128),
    "2.7b": _published(32, 2560, 32, 80),
    "6.7b": _published(32, 4096, 32, 128),
    "13b": _published(40, 5140, 40, 128),
    "175b": _published(96, 12288, 96, 128),
}


def gpt3(sizes: GPT3Sizes, head: HeadChoice) -> TextModel:
    width = sizes.width
    norm = partial(LayerNorm, width, sizes.epsilon)

    def block(layer: int) -> Block:
        attention = Attention(
            width,
            sizes.heads,
            key_width=sizes.head_width,
            visibility=Causal() & Window(sizes.window) if layer % 2 else Causal(),
            dropout=sizes.attention_dropout,
        )
        return Block(
            attention=PreNorm(norm(), attention, sizes.dropout),
            feed_forward=PreNorm(norm(), MLP(width, sizes.hidden, gelu_tanh), sizes.dropout),
        )

    tokens = TokenEmbedding(sizes.vocabulary, width)
    language = partial(TiedHead, tokens)
    model = TextModel(
        embed=Embed(tokens, Learned(sizes.positions, width), sizes.embedding_dropout),
        stack=Stack([block(layer) for layer in range(sizes.layers)], norm()),
        head=make_head(head, width, {"language": language}, pool=LastToken, dropout=sizes.dropout, bias=False),
        longest=sizes.positions,
    )
    initialise(model, sizes.layers)
    return model


FAMILIES = (
    Family(
        "gpt3",
        "GPT-2 made larger, every other layer looking back no further than a band",
        GPT3Sizes,
        gpt3,
        SIZES,
        DECODER_HEADS,
    ),
)
