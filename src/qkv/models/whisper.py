"""Whisper: a Transformer that hears 30 seconds of speech as mel frames and writes what was said. [radford2023 §2.2]"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from qkv.models.family import Family
from qkv.models.frame_model import FrameModel
from qkv.models.head_choice import HeadChoice, make_head
from qkv.models.initial import initialise_normal
from qkv.models.sequence_to_sequence import EncoderDecoder
from qkv.parts.attention.attention import Attention, CrossAttention, HeadOptions
from qkv.parts.attention.visibility import Causal
from qkv.parts.block import Block
from qkv.parts.embed import Embed, TokenEmbedding
from qkv.parts.feedforward import MLP, find_activation
from qkv.parts.frames import FrameStem, Given, timescales
from qkv.parts.heads import TiedHead
from qkv.parts.layers import NormedSummedStack
from qkv.parts.norm import LayerNorm
from qkv.parts.pool import MeanOfTokens
from qkv.parts.position import Learned
from qkv.parts.residual import PreNorm
from qkv.parts.sound_heads import ProjectedHead
from qkv.parts.stack import Stack

ENCODER_HEADS = ("classification", "states", "embedding")


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


@dataclass(frozen=True, kw_only=True)
class WhisperEncoderSizes:
    """Of the half that hears."""

    mels: int
    source_positions: int
    width: int
    hidden: int
    heads: int
    layers: int
    activation: str = "gelu"
    dropout: float = 0.0
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    decision_width: int = 256  # in which slots are averaged for a decision
    summed: bool = False  # decisions hear all layers, not only the last


def encoder_of(sizes: WhisperSizes) -> WhisperEncoderSizes:
    return WhisperEncoderSizes(
        mels=sizes.mels,
        source_positions=sizes.source_positions,
        width=sizes.width,
        hidden=sizes.encoder_hidden,
        heads=sizes.encoder_heads,
        layers=sizes.encoder_layers,
        activation=sizes.activation,
        dropout=sizes.dropout,
        hidden_dropout=sizes.hidden_dropout,
        attention_dropout=sizes.attention_dropout,
    )


ENCODER_SIZES = {
    name: encoder_of(SIZES[name]) for name in ("tiny", "base", "small", "medium", "large", "large-v3")
}  # those for English alone, large-v2 and turbo hear with the same


def stem(sizes: WhisperEncoderSizes) -> FrameStem:
    return FrameStem(sizes.mels, sizes.width, Given(sizes.source_positions, sizes.width, timescales), sizes.dropout)


def hearing_blocks(sizes: WhisperEncoderSizes) -> list[Block]:
    norm, activation = partial(LayerNorm, sizes.width), find_activation(sizes.activation)

    def block() -> Block:
        attention = Attention(sizes.width, sizes.heads, key_bias=False, dropout=sizes.attention_dropout)
        feed_forward = MLP(sizes.width, sizes.hidden, activation, dropout=sizes.hidden_dropout)
        return Block(
            attention=PreNorm(norm(), attention, sizes.dropout),
            feed_forward=PreNorm(norm(), feed_forward, sizes.dropout),
        )

    return [block() for _ in range(sizes.layers)]


def whisper_encoder(sizes: WhisperEncoderSizes, head: HeadChoice) -> FrameModel:
    """The half that hears alone, to decide about sounds: W₂ mean(W₁ x + b₁) + b₂ over all slots, silence included."""
    summed = sizes.summed and head.kind == "classification"
    stack = (NormedSummedStack if summed else Stack)(hearing_blocks(sizes), LayerNorm(sizes.width))
    model = FrameModel(
        embed=stem(sizes),
        stack=stack,
        head=make_head(
            head,
            sizes.width,
            {"classification": lambda: ProjectedHead(sizes.width, sizes.decision_width, len(head.labels))},
            pool=MeanOfTokens,
            kinds=ENCODER_HEADS,
            pools={"mean": MeanOfTokens},
        ),
    )
    initialise_normal(model)
    return model


def whisper(sizes: WhisperSizes) -> EncoderDecoder:
    width, dropout = sizes.width, sizes.dropout
    norm = partial(LayerNorm, width)
    activation = find_activation(sizes.activation)
    hears: HeadOptions = {"key_bias": False, "dropout": sizes.attention_dropout}
    writes: HeadOptions = {**hears, "visibility": Causal()}

    def decoder_block() -> Block:
        return Block(
            attention=PreNorm(norm(), Attention(width, sizes.decoder_heads, **writes), dropout),
            cross=PreNorm(norm(), CrossAttention(width, sizes.decoder_heads, **hears), dropout),
            feed_forward=PreNorm(
                norm(), MLP(width, sizes.decoder_hidden, activation, dropout=sizes.hidden_dropout), dropout
            ),
        )

    half = encoder_of(sizes)
    tokens = TokenEmbedding(sizes.vocabulary, width)
    return EncoderDecoder(
        source=stem(half),
        encoder=Stack(hearing_blocks(half), norm()),
        target=Embed(tokens, Learned(sizes.target_positions, width), dropout),
        decoder=Stack([decoder_block() for _ in range(sizes.decoder_layers)], norm()),
        head=TiedHead(tokens),
    )


FAMILIES = (
    Family(
        "whisper",
        "an encoder of speech and a decoder that writes what was said",
        WhisperSizes,
        whisper,
        SIZES,
        reads="sound",
    ),
    Family(
        "whisper-encoder",
        "the half of Whisper that hears, to decide about sounds",
        WhisperEncoderSizes,
        whisper_encoder,
        ENCODER_SIZES,
        ENCODER_HEADS,
        "sound",
    ),
)
