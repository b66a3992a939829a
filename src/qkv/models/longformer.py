"""Longformer: an encoder of long texts, whose tokens see those near them and a few that all see. [beltagy2020 §3]"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from qkv.models.described import DESCRIBED
from qkv.models.family import Family
from qkv.models.head_choice import HeadChoice, make_head
from qkv.models.initial import initialise_normal
from qkv.models.text_model import TextModel
from qkv.parts.attention.global_tokens import GlobalAttention
from qkv.parts.attention.visibility import Rule, SameDocument, Tokens, Window
from qkv.parts.attention.whole_rows import rules_of
from qkv.parts.block import Block
from qkv.parts.embed import Embed, TokenEmbedding
from qkv.parts.feedforward import MLP, find_activation, gelu
from qkv.parts.heads import LogitHead, MaskedHead, PooledStatesHead, TiedHead
from qkv.parts.norm import LayerNorm
from qkv.parts.pool import DensePool, FirstToken
from qkv.parts.position import Learned
from qkv.parts.residual import PostNorm
from qkv.parts.spec import Depends
from qkv.parts.stack import Stack

HEADS = ("masked", "pooled", "states", "classification", "tokens", "embedding")
GLOBAL = {"classification": 1}  # tokens that all see where a batch marks none, by head; none in the others


@dataclass(frozen=True, kw_only=True)
class LongformerSizes:
    vocabulary: int
    positions: int  # the longest text
    first_position: int = 2  # vectors before that of the first position, one more than the id of the padding token
    segments: int = 1
    width: int
    hidden: int
    heads: int
    layers: int
    window: int = 256  # tokens that are seen on either side
    activation: str = "gelu"
    epsilon: float = 1e-5  # of the norms
    dropout: float = 0.1  # of what each sub-layer adds, of the embeddings, and before a decision
    attention_dropout: float = 0.1
    tied: bool = True  # one matrix for input and output [press2017 §3]


def _published(width: int, layers: int, heads: int) -> LongformerSizes:
    return LongformerSizes(vocabulary=50265, positions=4096, width=width, hidden=4 * width, heads=heads, layers=layers)


# Begun with RoBERTa's weights. [beltagy2020 §5]
SIZES = {"base": _published(768, 12, 12), "large": _published(1024, 24, 16)}


class LongText(TextModel):
    """A text model in which the first tokens of each text are marked where a batch marks none."""

    depends_on = Depends("embed", "stack", "head", "first", unread=DESCRIBED)

    def __init__(self, embed: Embed, stack: nn.Module, head: nn.Module, longest: int, first: int) -> None:
        super().__init__(embed, stack, head, longest)
        self.first = first

    def marked(self, tokens: Tokens, positions: Tensor | None, visibility: Rule, device: torch.device) -> Tokens:
        if tokens.marks is not None or not self.first:
            return super().marked(tokens, positions, visibility, device)
        if positions is None:
            positions = torch.arange(tokens.size, device=device)
        marks = torch.atleast_2d(positions < self.first)  # [b s] or [1 s]
        if tokens.documents is not None:
            marks = marks & (tokens.documents > 0)
        packed = any(isinstance(rule, SameDocument) for rule in rules_of(visibility))  # several texts in a row
        return replace(tokens, marks=marks, most_marked=None if packed else min(self.first, tokens.size)).counted()


def longformer(sizes: LongformerSizes, head: HeadChoice) -> LongText:
    width, dropout = sizes.width, sizes.dropout
    activation = find_activation(sizes.activation)
    norm = partial(LayerNorm, width, sizes.epsilon)

    def block() -> Block:
        near = Window(sizes.window + 1)
        return Block(
            attention=PostNorm(
                norm(), GlobalAttention(width, sizes.heads, near, dropout=sizes.attention_dropout), dropout
            ),
            feed_forward=PostNorm(norm(), MLP(width, sizes.hidden, activation), dropout),
        )

    def masked() -> MaskedHead:
        logits = TiedHead(tokens, bias=True) if sizes.tied else LogitHead(width, sizes.vocabulary, bias=True)
        return MaskedHead(width, width, gelu, norm(), logits)

    tokens, segments = TokenEmbedding(sizes.vocabulary, width), TokenEmbedding(sizes.segments, width)
    positions = Learned(sizes.positions, width, sizes.first_position)
    model = LongText(
        embed=Embed(tokens, positions, dropout, segments=segments, norm=norm()),
        stack=Stack([block() for _ in range(sizes.layers)]),
        head=make_head(
            head,
            width,
            {
                "masked": masked,
                "pooled": lambda: PooledStatesHead(DensePool(FirstToken(), width, torch.tanh)),
            },
            pool=lambda: DensePool(FirstToken(), width, torch.tanh, dropout),
            dropout=dropout,
            kinds=HEADS,
        ),
        longest=sizes.positions,
        first=GLOBAL.get(head.kind, 0),
    )
    initialise_normal(model)
    return model


FAMILIES = (
    Family(
        "longformer",
        "an encoder of long texts, which looks around nearby and at a few tokens that all see",
        LongformerSizes,
        longformer,
        SIZES,
        HEADS,
    ),
)
