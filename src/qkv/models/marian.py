"""Marian: the 2017 Transformer as it is published for translation between hundreds of languages. [junczysdowmunt2018]

DIFFERS [vaswani2017]: swish in place of ReLU, sines and cosines in halves, and a bias on the logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from qkv.models.family import Family
from qkv.models.sequence_to_sequence import EncoderDecoder
from qkv.parts.attention.attention import Attention, CrossAttention
from qkv.parts.attention.visibility import Causal
from qkv.parts.block import Block
from qkv.parts.embed import Embed, TokenEmbedding
from qkv.parts.feedforward import MLP, silu
from qkv.parts.heads import TiedHead
from qkv.parts.norm import LayerNorm
from qkv.parts.position import Sinusoidal, halves
from qkv.parts.residual import PostNorm
from qkv.parts.stack import Stack


@dataclass(frozen=True, kw_only=True)
class MarianSizes:
    vocabulary: int
    width: int
    encoder_hidden: int
    decoder_hidden: int
    encoder_heads: int
    decoder_heads: int
    encoder_layers: int
    decoder_layers: int
    dropout: float


SIZES = {
    "base": MarianSizes(
        vocabulary=58101,
        width=512,
        encoder_hidden=2048,
        decoder_hidden=2048,
        encoder_heads=8,
        decoder_heads=8,
        encoder_layers=6,
        decoder_layers=6,
        dropout=0.1,
    ),
}


def marian(sizes: MarianSizes) -> EncoderDecoder:
    width = sizes.width
    norm = partial(LayerNorm, width)

    def encoder_block() -> Block:
        return Block(
            attention=PostNorm(norm(), Attention(width, sizes.encoder_heads), sizes.dropout),
            feed_forward=PostNorm(norm(), MLP(width, sizes.encoder_hidden, silu), sizes.dropout),
        )

    def decoder_block() -> Block:
        return Block(
            attention=PostNorm(norm(), Attention(width, sizes.decoder_heads, visibility=Causal()), sizes.dropout),
            cross=PostNorm(norm(), CrossAttention(width, sizes.decoder_heads), sizes.dropout),
            feed_forward=PostNorm(norm(), MLP(width, sizes.decoder_hidden, silu), sizes.dropout),
        )

    tokens = TokenEmbedding(sizes.vocabulary, width, scale=width**0.5)
    return EncoderDecoder(
        source=Embed(tokens, Sinusoidal(width, halves), sizes.dropout),
        encoder=Stack([encoder_block() for _ in range(sizes.encoder_layers)]),
        target=Embed(tokens, Sinusoidal(width, halves), sizes.dropout),
        decoder=Stack([decoder_block() for _ in range(sizes.decoder_layers)]),
        head=TiedHead(tokens, bias=True),
    )


FAMILIES = (Family("marian", "the Transformer as published for translation", MarianSizes, marian, SIZES),)
