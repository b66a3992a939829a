"""T5: an encoder and a decoder whose positions are a bias for each bucket of distances. [raffel2020 §2.1]

Version 1.1 has a gated feed-forward and a matrix of its own for the logits [shazeer2020 §3].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from qkv.errors import QkvError
from qkv.models.family import Family
from qkv.models.sequence_to_sequence import EncoderDecoder
from qkv.parts.attention.attention import Attention, CrossAttention, HeadOptions
from qkv.parts.attention.visibility import Causal
from qkv.parts.block import Block
from qkv.parts.embed import Embed, TokenEmbedding
from qkv.parts.feedforward import MLP, GatedMLP, gelu_tanh, relu, silu
from qkv.parts.heads import LogitHead, TiedHead
from qkv.parts.norm import RMSNorm
from qkv.parts.position import RelativeBuckets
from qkv.parts.residual import PreNorm
from qkv.parts.stack import Stack


@dataclass(frozen=True, kw_only=True)
class T5Sizes:
    vocabulary: int
    width: int
    key_width: int  # of a head, and independent of the width
    hidden: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    buckets: int = 32
    farthest: int = 128  # distance from which on all are alike
    feed_forward: str = "relu"
    epsilon: float = 1e-6  # of the norms
    dropout: float = 0.1
    tied: bool = True  # one matrix for input and output [press2017 §3]
    scaled: bool = True  # the stream is shrunk by 1/√width before the logits, as version 1.1 does not


FEED_FORWARDS: dict[str, Callable[..., nn.Module]] = {
    "relu": partial(MLP, activation=relu, bias=False),
    "gelu": partial(MLP, activation=gelu_tanh, bias=False),
    "gated-gelu": partial(GatedMLP, activation=gelu_tanh),
    "gated-silu": partial(GatedMLP, activation=silu),
}


def _published(width: int, key_width: int, hidden: int, heads: int, layers: int) -> T5Sizes:
    return T5Sizes(
        vocabulary=32128,
        width=width,
        key_width=key_width,
        hidden=hidden,
        heads=heads,
        encoder_layers=layers,
        decoder_layers=layers,
    )


_V11: dict[str, Any] = {"feed_forward": "gated-gelu", "tied": False, "scaled": False}

# [raffel2020 §3.7], and those of version 1.1 as its checkpoints have them
SIZES = {
    "small": _published(512, 64, 2048, 8, 6),
    "base": _published(768, 64, 3072, 12, 12),
    "large": _published(1024, 64, 4096, 16, 24),
    "3b": _published(1024, 128, 16384, 32, 24),
    "11b": _published(1024, 128, 65536, 128, 24),
    "v1.1-small": replace(_published(512, 64, 1024, 6, 8), **_V11),
    "v1.1-base": replace(_published(768, 64, 2048, 12, 12), **_V11),
    "v1.1-large": replace(_published(1024, 64, 2816, 16, 24), **_V11),
    "v1.1-xl": replace(_published(2048, 64, 5120, 32, 24), **_V11),
    "v1.1-xxl": replace(_published(4096, 64, 10240, 64, 24), **_V11),
}


def t5(sizes: T5Sizes) -> EncoderDecoder:
    model = assemble(sizes, lambda layer: dense(sizes), lambda layer: dense(sizes))
    initialise(model, sizes)
    return model


def dense(sizes: T5Sizes) -> nn.Module:
    """The feed-forward of one block."""
    if sizes.feed_forward not in FEED_FORWARDS:
        known = ", ".join(FEED_FORWARDS)
        raise QkvError(f"T5 has no feed-forward called {sizes.feed_forward}: there are {known}.")
    return FEED_FORWARDS[sizes.feed_forward](sizes.width, sizes.hidden, dropout=sizes.dropout)


def assemble(
    sizes: T5Sizes, of_encoder: Callable[[int], nn.Module], of_decoder: Callable[[int], nn.Module]
) -> EncoderDecoder:
    """Both stacks, with the feed-forward that is given for each block by its number, from 0."""
    width, dropout = sizes.width, sizes.dropout
    norm = partial(RMSNorm, width, sizes.epsilon)
    # Queries and keys start so small that no scale is needed: of this the published code tells, not the paper.
    head_options: HeadOptions = {"key_width": sizes.key_width, "bias": False, "scale": 1.0, "dropout": dropout}
    looking_back: HeadOptions = {**head_options, "visibility": Causal()}

    def encoder_block(layer: int) -> Block:
        return Block(
            attention=PreNorm(norm(), Attention(width, sizes.heads, **head_options), dropout),
            feed_forward=PreNorm(norm(), of_encoder(layer), dropout),
        )

    def decoder_block(layer: int) -> Block:
        return Block(
            attention=PreNorm(norm(), Attention(width, sizes.heads, **looking_back), dropout),
            cross=PreNorm(norm(), CrossAttention(width, sizes.heads, **head_options), dropout),
            feed_forward=PreNorm(norm(), of_decoder(layer), dropout),
        )

    buckets = partial(RelativeBuckets, sizes.heads, sizes.buckets, sizes.farthest)
    tokens = TokenEmbedding(sizes.vocabulary, width)
    scale = width**-0.5 if sizes.scaled else 1.0
    return EncoderDecoder(
        source=Embed(tokens, dropout=dropout),
        encoder=Stack(
            [encoder_block(layer) for layer in range(sizes.encoder_layers)], norm(), buckets(looks_ahead=True), dropout
        ),
        target=Embed(tokens, dropout=dropout),
        decoder=Stack(
            [decoder_block(layer) for layer in range(sizes.decoder_layers)], norm(), buckets(looks_ahead=False), dropout
        ),
        head=TiedHead(tokens, scale=scale) if sizes.tied else LogitHead(width, sizes.vocabulary, scale=scale),
    )


def initialise(model: EncoderDecoder, sizes: T5Sizes) -> None:
    """Deviations by the size of each map, as the published code has them: the paper is silent."""
    width = sizes.width
    for module in model.modules():
        if isinstance(module, TokenEmbedding):
            nn.init.normal_(module.weight)
        elif isinstance(module, RelativeBuckets):
            nn.init.normal_(module.weight, std=width**-0.5)
        elif isinstance(module, Attention | CrossAttention):
            for part in module.project.parts(module.project.weight):
                nn.init.normal_(part, std=width**-0.5)
            queries = module.query.weight if isinstance(module, CrossAttention) else None
            if queries is None:
                queries = next(module.project.parts(module.project.weight))
            nn.init.normal_(queries, std=(width * sizes.key_width) ** -0.5)
            nn.init.normal_(module.out.weight, std=(sizes.heads * sizes.key_width) ** -0.5)
        elif isinstance(module, MLP | GatedMLP):
            nn.init.normal_(module.inner.weight, std=width**-0.5)
            nn.init.normal_(module.outer.weight, std=sizes.hidden**-0.5)


FAMILIES = (Family("t5", "an encoder and a decoder with bucketed distances for positions", T5Sizes, t5, SIZES),)
