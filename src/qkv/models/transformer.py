"""The Transformer of 2017: six encoder and six decoder layers, built from the parts. [vaswani2017 fig.1]"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Protocol

from torch import nn

from qkv.models.family import Family
from qkv.models.sequence_to_sequence import EncoderDecoder
from qkv.parts.attention.attention import Attention, CrossAttention
from qkv.parts.attention.visibility import Causal
from qkv.parts.block import Block
from qkv.parts.deepnorm import constants_of_decoder, constants_of_encoder, start_deepnorm
from qkv.parts.embed import Embed, TokenEmbedding
from qkv.parts.feedforward import MLP
from qkv.parts.heads import TiedHead
from qkv.parts.norm import LayerNorm
from qkv.parts.position import Sinusoidal
from qkv.parts.residual import Admin, DeepNorm, PostNorm, PreNorm, ReZero
from qkv.parts.stack import Stack


@dataclass(frozen=True, kw_only=True)
class TransformerSizes:
    vocabulary: int  # of the target, and of the source too unless it has its own
    source_vocabulary: int | None = None  # None: one vocabulary and one matrix for both [vaswani2017 §3.4]
    width: int
    hidden: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    dropout: float  # on every mixer's answer and on the embeddings [vaswani2017 §5.4]
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0


# [vaswani2017 tab.3]; the vocabulary is the shared English–German one of §5.1
SIZES = {
    "base": TransformerSizes(
        vocabulary=37000, width=512, hidden=2048, heads=8, encoder_layers=6, decoder_layers=6, dropout=0.1
    ),
    "big": TransformerSizes(
        vocabulary=37000, width=1024, hidden=4096, heads=16, encoder_layers=6, decoder_layers=6, dropout=0.3
    ),
}


class Wiring(Protocol):
    """How a mixer joins the stream: PostNorm, PreNorm, Admin with its width, DeepNorm with its α."""

    def __call__(self, norm: nn.Module, mixer: nn.Module, dropout: float) -> nn.Module: ...


def transformer(
    sizes: TransformerSizes,
    wiring: Wiring = PostNorm,
    final_norm: type[nn.Module] | None = None,
    decoder_wiring: Wiring | None = None,
) -> EncoderDecoder:
    """The 2017 Transformer; another wiring of its residuals, one for both stacks or two, gives its descendants."""
    width, heads = sizes.width, sizes.heads
    norm = partial(LayerNorm, width)

    def step(mixer: nn.Module, wired: Wiring = wiring) -> nn.Module:
        return wired(norm(), mixer, sizes.dropout)

    in_decoder = partial(step, wired=decoder_wiring or wiring)

    def feed_forward() -> nn.Module:
        return MLP(width, sizes.hidden, dropout=sizes.hidden_dropout)

    def encoder_block() -> Block:
        return Block(
            attention=step(Attention(width, heads, dropout=sizes.attention_dropout)),
            feed_forward=step(feed_forward()),
        )

    def decoder_block() -> Block:
        return Block(
            attention=in_decoder(Attention(width, heads, visibility=Causal(), dropout=sizes.attention_dropout)),
            cross=in_decoder(CrossAttention(width, heads, dropout=sizes.attention_dropout)),
            feed_forward=in_decoder(feed_forward()),
        )

    target = TokenEmbedding(sizes.vocabulary, width, scale=width**0.5)
    source = target
    if sizes.source_vocabulary is not None:
        source = TokenEmbedding(sizes.source_vocabulary, width, scale=width**0.5)
    last_norm = (lambda: None) if final_norm is None else partial(final_norm, width)
    return EncoderDecoder(
        source=Embed(source, Sinusoidal(width), sizes.dropout),
        encoder=Stack([encoder_block() for _ in range(sizes.encoder_layers)], last_norm()),
        target=Embed(target, Sinusoidal(width), sizes.dropout),
        decoder=Stack([decoder_block() for _ in range(sizes.decoder_layers)], last_norm()),
        head=TiedHead(target),
    )


def prenorm_transformer(sizes: TransformerSizes) -> EncoderDecoder:
    """The same with the norm before each mixer and one after each stack; it needs no long warm-up. [xiong2020 tab.1]"""
    return transformer(sizes, PreNorm, final_norm=LayerNorm)


def admin_transformer(sizes: TransformerSizes) -> EncoderDecoder:
    """The same with Admin's balanced residuals, which `profile_admin` sets from a batch. [liu2020 §4.3]"""
    return transformer(sizes, partial(Admin, width=sizes.width))


def rezero_transformer(sizes: TransformerSizes) -> EncoderDecoder:
    """The same without norms, every mixer gated by a number that starts at 0. [bachlechner2020]"""

    def without_norm(norm: nn.Module, mixer: nn.Module, dropout: float) -> nn.Module:
        return ReZero(mixer, dropout)

    return transformer(sizes, without_norm)


def deepnorm_transformer(sizes: TransformerSizes) -> EncoderDecoder:
    """The same with DeepNorm's weights on the stream and its smaller start. [wang2022 fig.2]"""
    encoder = constants_of_encoder(sizes.encoder_layers, sizes.decoder_layers)
    decoder = constants_of_decoder(sizes.decoder_layers)
    model = transformer(
        sizes, partial(DeepNorm, alpha=encoder.alpha), decoder_wiring=partial(DeepNorm, alpha=decoder.alpha)
    )
    start_deepnorm(model.encoder, encoder.beta)
    start_deepnorm(model.decoder, decoder.beta)
    return model


FAMILIES = (
    Family(
        "transformer",
        "the 2017 Transformer, norm after each sub-layer as published",
        TransformerSizes,
        transformer,
        SIZES,
    ),
    Family(
        "transformer-prenorm",
        "the same with the norm before each sub-layer",
        TransformerSizes,
        prenorm_transformer,
        SIZES,
    ),
    Family(
        "transformer-admin",
        "the same with Admin's balanced residuals",
        TransformerSizes,
        admin_transformer,
        SIZES,
    ),
    Family(
        "transformer-rezero",
        "the same without norms, beginning as the identity",
        TransformerSizes,
        rezero_transformer,
        SIZES,
    ),
    Family(
        "transformer-deepnorm",
        "the same with the stream weighed by depth, for very deep stacks",
        TransformerSizes,
        deepnorm_transformer,
        SIZES,
    ),
)
