"""Whisper: a Transformer that hears 30 seconds of speech as mel frames and writes what was said. [radford2023 §2.2]"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from qkv.models.sequence_to_sequence import EncoderDecoder
from qkv.parts.attention.attention import Attention, CrossAttention, HeadOptions
from qkv.parts.attention.visibility import Causal
from qkv.parts.block import Block
from qkv.parts.embed import Embed, TokenEmbedding
from qkv.parts.feedforward import MLP, find_activation
from qkv.parts.frames import FrameStem, Given, timescales
from qkv.parts.heads import TiedHead
from qkv.parts.norm import LayerNorm
from qkv.parts.position import Learned
from qkv.parts.residual import PreNorm
from qkv.parts.stack import Stack


@dataclass(frozen=True, kw_only=True)
class WhisperSizes:
    vocabulary: int
    mels: int  # features of a frame
    source_positions: int  # of the encoder, each two frames: 1500 are 30 seconds
    target_positions: int
    width: int
    encoder_hidden: int
    decoder_hidden: int
    encoder_heads: int
    decoder_heads: int
    encoder_layers: int
    decoder_layers: int
    activation: str = "gelu"
    dropout: float = 0.0
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0


def _published(
    width: int, heads: int, layers: int, *, vocabulary: int = 51865, mels: int = 80, decoder_layers: int | None = None
) -> WhisperSizes:
    return WhisperSizes(
        vocabulary=vocabulary,
        mels=mels,
        source_positions=1500,
        target_positions=448,
        width=width,
        encoder_hidden=4 * width,
        decoder_hidden=4 * width,
        encoder_heads=heads,
        decoder_heads=heads,
        encoder_layers=layers,
        decoder_layers=decoder_layers or layers,
    )


# [radford2023 tab.1], and what was published later; those that know English alone have a vocabulary of their own
SIZES = {
    "tiny": _published(384, 6, 4),
    "tiny.en": _published(384, 6, 4, vocabulary=51864),
    "base": _published(512, 8, 6),
    "base.en": _published(512, 8, 6, vocabulary=51864),
    "small": _published(768, 12, 12),
    "small.en": _published(768, 12, 12, vocabulary=51864),
    "medium": _published(1024, 16, 24),
    "medium.en": _published(1024, 16, 24, vocabulary=51864),
    "large": _published(1280, 20, 32),
    "large-v2": _published(1280, 20, 32),
    "large-v3": _published(1280, 20, 32, vocabulary=51866, mels=128),
    "large-v3-turbo": _published(1280, 20, 32, vocabulary=51866, mels=128, decoder_layers=4),
}


def whisper(sizes: WhisperSizes) -> EncoderDecoder:
    width, dropout = sizes.width, sizes.dropout
    norm = partial(LayerNorm, width)
    activation = find_activation(sizes.activation)
    hears: HeadOptions = {"key_bias": False, "dropout": sizes.attention_dropout}
    writes: HeadOptions = {**hears, "visibility": Causal()}

    def feed_forward(hidden: int) -> MLP:
        return MLP(width, hidden, activation, dropout=sizes.hidden_dropout)

    def encoder_block() -> Block:
        return Block(
            attention=PreNorm(norm(), Attention(width, sizes.encoder_heads, **hears), dropout),
            feed_forward=PreNorm(norm(), feed_forward(sizes.encoder_hidden), dropout),
        )

    def decoder_block() -> Block:
        return Block(
            attention=PreNorm(norm(), Attention(width, sizes.decoder_heads, **writes), dropout),
            cross=PreNorm(norm(), CrossAttention(width, sizes.decoder_heads, **hears), dropout),
            feed_forward=PreNorm(norm(), feed_forward(sizes.decoder_hidden), dropout),
        )

    tokens = TokenEmbedding(sizes.vocabulary, width)
    return EncoderDecoder(
        source=FrameStem(sizes.mels, width, Given(timescales(sizes.source_positions, width)), dropout),
        encoder=Stack([encoder_block() for _ in range(sizes.encoder_layers)], norm()),
        target=Embed(tokens, Learned(sizes.target_positions, width), dropout),
        decoder=Stack([decoder_block() for _ in range(sizes.decoder_layers)], norm()),
        head=TiedHead(tokens),
    )
