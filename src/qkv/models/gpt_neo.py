"""GPT-Neo: a GPT-3 in the open, whose layers look far and near in turn and do not scale their scores. [black2021]"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from qkv.errors import QkvError
from qkv.models.family import DECODER_HEADS, Family
from qkv.models.head_choice import HeadChoice, make_head
from qkv.models.initial import initialise_normal
from qkv.models.text_model import TextModel
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.visibility import Causal, Rule, Window
from qkv.parts.block import Block
from qkv.parts.embed import Embed, TokenEmbedding
from qkv.parts.feedforward import MLP, find_activation
from qkv.parts.heads import LogitHead, TiedHead
from qkv.parts.norm import LayerNorm
from qkv.parts.pool import LastToken
from qkv.parts.position import Learned
from qkv.parts.residual import PreNorm
from qkv.parts.stack import Stack


@dataclass(frozen=True, kw_only=True)
class GPTNeoSizes:
    vocabulary: int
    positions: int  # the longest text
    width: int
    hidden: int
    heads: int
    layers: int
    sights: str = "global local"  # what the layers see, one after the other and then again from the first
    window: int = 256  # tokens that a local layer sees, its own counted
    activation: str = "gelu_tanh"
    epsilon: float = 1e-5  # of the norms
    dropout: float = 0.0  # of what each sub-layer adds
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    head_dropout: float = 0.1  # before a decision about a text or a token
    tied: bool = True  # one matrix for input and output [press2017 §3]


def _published(width: int, layers: int, heads: int) -> GPTNeoSizes:
    return GPTNeoSizes(vocabulary=50257, positions=2048, width=width, hidden=4 * width, heads=heads, layers=layers)


SIZES = {
    "125m": _published(768, 12, 12),
    "1.3b": _published(2048, 24, 16),
    "2.7b": _published(2560, 32, 20),
}


def gpt_neo(sizes: GPTNeoSizes, head: HeadChoice) -> TextModel:
    width = sizes.width
    norm = partial(LayerNorm, width, sizes.epsilon)
    sights = sights_of_layers(sizes)

    def block(layer: int) -> Block:
        attention = Attention(
            width,
            sizes.heads,
            bias=False,
            out_bias=True,
            scale=1.0,
            visibility=sights[layer],
            dropout=sizes.attention_dropout,
        )
        feed_forward = MLP(width, sizes.hidden, find_activation(sizes.activation))
        return Block(
            attention=PreNorm(norm(), attention, sizes.dropout),
            feed_forward=PreNorm(norm(), feed_forward, sizes.dropout),
        )

    tokens = TokenEmbedding(sizes.vocabulary, width)
    language = partial(TiedHead, tokens) if sizes.tied else partial(LogitHead, width, sizes.vocabulary)
    model = TextModel(
        embed=Embed(tokens, Learned(sizes.positions, width), sizes.embedding_dropout),
        stack=Stack([block(layer) for layer in range(sizes.layers)], norm()),
        head=make_head(head, width, {"language": language}, pool=LastToken, dropout=sizes.head_dropout, bias=False),
        longest=sizes.positions,
    )
    initialise_normal(model)
    return model


def sights_of_layers(sizes: GPTNeoSizes) -> list[Rule]:
    """Who sees whom in each layer."""
    rules: dict[str, Rule] = {"global": Causal(), "local": Causal() & Window(sizes.window)}
    names = sizes.sights.split()
    if not names or not rules.keys() >= set(names):
        raise QkvError(f"The sights of GPT-Neo's layers are words global and local, not {sizes.sights!r}.")
    return [rules[names[layer % len(names)]] for layer in range(sizes.layers)]


FAMILIES = (
    Family(
        "gpt-neo",
        "a GPT-3 in the open, layers looking far and near in turn",
        GPTNeoSizes,
        gpt_neo,
        SIZES,
        DECODER_HEADS,
    ),
)
