"""Llama and its kin: RMS norms, rotary positions, gated feed-forward, grouped queries. [touvron2023 §2.2]"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.models.family import DECODER_HEADS, Family
from qkv.models.head_choice import HeadChoice, make_head
from qkv.models.initial import initialise_normal
from qkv.models.text_model import TextModel
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.visibility import Causal, Window
from qkv.parts.block import Block
from qkv.parts.embed import Embed, TokenEmbedding
from qkv.parts.feedforward import GatedMLP, find_activation
from qkv.parts.heads import LogitHead, TiedHead
from qkv.parts.norm import RMSNorm
from qkv.parts.pool import LastToken
from qkv.parts.position import Rotary, interpolated_rates, llama3_rates, rotary_rates, rotate_halves, yarn_rates
from qkv.parts.residual import PreNorm
from qkv.parts.stack import Stack

STRETCHES = ("none", "linear", "llama3", "yarn")


@dataclass(frozen=True, kw_only=True)
class LlamaSizes:
    vocabulary: int
    positions: int  # the longest text
    width: int
    hidden: int
    heads: int
    key_value_heads: int  # each serves several query heads [ainslie2023 §2.2]
    layers: int
    head_width: int | None = None  # None: width / heads
    window: int | None = None  # tokens that one sees, its own counted; None: all before it
    activation: str = "silu"
    epsilon: float = 1e-5  # of the norms
    attention_bias: bool = False  # of queries, keys and values
    output_bias: bool = False  # of what the attention adds
    feed_forward_bias: bool = False
    dropout: float = 0.0  # of the embeddings and of what each sub-layer adds; no published one has it
    attention_dropout: float = 0.0
    head_dropout: float = 0.1  # before a decision about a text or a token
    tied: bool = False  # one matrix for input and output [press2017 §3]
    rotary_base: float = 10000.0
    stretch: str = "none"  # how rotary positions reach beyond those trained: none, linear, llama3 or yarn
    stretch_factor: float = 1.0  # how far
    trained_positions: int | None = None  # of llama3 and yarn: the longest text before the stretch
    slow_turns: float = 1.0  # of llama3 and yarn: pairs that turn less often in a trained text are wholly squeezed
    fast_turns: float = 4.0  # and those that turn more often not at all; 32 in yarn
    sharpness: float = 1.0  # of yarn: what queries and keys are multiplied by


def _llama1(width: int, hidden: int, heads: int, layers: int) -> LlamaSizes:
    return LlamaSizes(
        vocabulary=32000,
        positions=2048,
        width=width,
        hidden=hidden,
        heads=heads,
        key_value_heads=heads,
        layers=layers,
        epsilon=1e-6,
    )


def _llama2(width: int, hidden: int, heads: int, key_value_heads: int, layers: int) -> LlamaSizes:
    return LlamaSizes(
        vocabulary=32000,
        positions=4096,
        width=width,
        hidden=hidden,
        heads=heads,
        key_value_heads=key_value_heads,
        layers=layers,
    )


def _llama3(width: int, hidden: int, heads: int, layers: int) -> LlamaSizes:
    return LlamaSizes(
        vocabulary=128256,
        positions=8192,
        width=width,
        hidden=hidden,
        heads=heads,
        key_value_heads=8,
        layers=layers,
        rotary_base=500_000.0,
    )


SIZES = {
    # [touvron2023 tab.2]
    "1-7b": _llama1(4096, 11008, 32, 32),
    "1-13b": _llama1(5120, 13824, 40, 40),
    "1-33b": _llama1(6656, 17920, 52, 60),
    "1-65b": _llama1(8192, 22016, 64, 80),
    # [touvron2023b tab.1]
    "2-7b": _llama2(4096, 11008, 32, 32, 32),
    "2-13b": _llama2(5120, 13824, 40, 40, 40),
    "2-70b": _llama2(8192, 28672, 64, 8, 80),
    # [grattafiori2024 tab.3]
    "3-8b": _llama3(4096, 14336, 32, 32),
    "3-70b": _llama3(8192, 28672, 64, 80),
    # small ones of the same kind
    "smollm2-135m": LlamaSizes(
        vocabulary=49152,
        positions=8192,
        width=576,
        hidden=1536,
        heads=9,
        key_value_heads=3,
        layers=30,
        tied=True,
        rotary_base=100_000.0,
    ),
    "stories15m": LlamaSizes(
        vocabulary=32000, positions=256, width=288, hidden=768, heads=6, key_value_heads=6, layers=6, tied=True
    ),
}


def llama(sizes: LlamaSizes, head: HeadChoice) -> TextModel:
    return assemble(sizes, head, gated(sizes))


def gated(sizes: LlamaSizes) -> Callable[[], GatedMLP]:
    activation = find_activation(sizes.activation)
    return partial(GatedMLP, sizes.width, sizes.hidden, activation, bias=sizes.feed_forward_bias)


def assemble(
    sizes: LlamaSizes,
    head: HeadChoice,
    feed_forward: Callable[[], nn.Module],
    head_norm: Callable[[], RMSNorm | None] = lambda: None,
) -> TextModel:
    """The model with this feed-forward in each block, and these norms of queries and keys."""
    width, head_width = sizes.width, sizes.head_width or sizes.width // sizes.heads
    norm = partial(RMSNorm, width, sizes.epsilon)
    rotary = Rotary(stretched_rates(sizes, head_width), rotate_halves)

    def block() -> Block:
        attention = Attention(
            width,
            sizes.heads,
            key_value_heads=sizes.key_value_heads,
            key_width=sizes.head_width,
            bias=sizes.attention_bias,
            out_bias=sizes.output_bias,
            scale=sizes.sharpness**2 * head_width**-0.5,
            visibility=Causal() if sizes.window is None else Causal() & Window(sizes.window),
            dropout=sizes.attention_dropout,
            query_norm=head_norm(),
            key_norm=head_norm(),
            rotary=rotary,
        )
        return Block(
            attention=PreNorm(norm(), attention, sizes.dropout),
            feed_forward=PreNorm(norm(), feed_forward(), sizes.dropout),
        )

    tokens = TokenEmbedding(sizes.vocabulary, width)
    language = partial(TiedHead, tokens) if sizes.tied else partial(LogitHead, width, sizes.vocabulary)
    model = TextModel(
        embed=Embed(tokens, dropout=sizes.dropout),
        stack=Stack([block() for _ in range(sizes.layers)], norm()),
        head=make_head(head, width, {"language": language}, pool=LastToken, dropout=sizes.head_dropout, bias=False),
        longest=sizes.positions,
    )
    initialise_normal(model)
    return model


def stretched_rates(sizes: LlamaSizes, head_width: int) -> Tensor:
    """The angle that a position turns each pair of a head. [head_width/2]"""
    if head_width % 2:
        raise QkvError(f"Rotary positions turn pairs, so a head of {head_width} numbers must be one larger or smaller.")
    _check_stretch(sizes)
    base, factor, trained = sizes.rotary_base, sizes.stretch_factor, sizes.trained_positions or sizes.positions
    rates = rotary_rates(head_width, base)
    if sizes.stretch == "linear":
        return interpolated_rates(rates, factor)
    if sizes.stretch == "llama3":
        return llama3_rates(rates, factor, trained, sizes.slow_turns, sizes.fast_turns)
    if sizes.stretch == "yarn":
        return yarn_rates(head_width, base, factor, trained, sizes.slow_turns, sizes.fast_turns)
    return rates


def _check_stretch(sizes: LlamaSizes) -> None:
    """A number that the stretch does not read would say something that the model does not do."""
    if sizes.stretch not in STRETCHES:
        raise QkvError(f"There is no stretch called {sizes.stretch!r}: it is one of {', '.join(STRETCHES)}.")
    if (sizes.stretch == "none" and sizes.stretch_factor != 1) or sizes.stretch_factor <= 0:
        raise QkvError(f"A stretch of {sizes.stretch} has no factor {sizes.stretch_factor}.")
    of_turns = (sizes.trained_positions, sizes.slow_turns, sizes.fast_turns)
    if sizes.stretch in ("none", "linear") and of_turns != (None, 1.0, 4.0):
        raise QkvError(
            f"A stretch of {sizes.stretch} asks for no trained_positions, slow_turns or fast_turns: leave them out."
        )
    if sizes.stretch != "yarn" and sizes.sharpness != 1:
        raise QkvError(f"Only yarn sharpens the attention, not {sizes.stretch}: leave out sharpness.")
    if not sizes.slow_turns < sizes.fast_turns or sizes.rotary_base <= 1:
        raise QkvError("Rotary positions need a base above 1, and slow_turns below fast_turns.")


FAMILIES = (
    Family(
        "llama",
        "RMS norms, rotary positions, gated feed-forward, grouped queries",
        LlamaSizes,
        llama,
        SIZES,
        DECODER_HEADS,
    ),
)
