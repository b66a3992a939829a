"""Mixtral: a Llama whose feed-forwards are experts, of which each token uses two. [jiang2024 §2]"""

from __future__ import annotations

from dataclasses import dataclass

from qkv.errors import QkvError
from qkv.models.family import DECODER_HEADS, Family
from qkv.models.head_choice import HeadChoice
from qkv.models.llama import LlamaSizes, assemble
from qkv.models.text_model import TextModel
from qkv.parts.experts import GatedExperts
from qkv.parts.feedforward import find_activation
from qkv.parts.routing import Router, of_chosen


@dataclass(frozen=True, kw_only=True)
class MixtralSizes(LlamaSizes):
    experts: int = 8
    chosen: int = 2  # experts that a token goes to


def _published(width: int, hidden: int, heads: int, layers: int, positions: int) -> MixtralSizes:
    return MixtralSizes(
        vocabulary=32000,
        positions=positions,
        width=width,
        hidden=hidden,
        heads=heads,
        key_value_heads=8,
        layers=layers,
        rotary_base=1_000_000.0,
    )


SIZES = {
    "8x7b": _published(4096, 14336, 32, 32, 32768),  # [jiang2024 tab.1]
    "8x22b": _published(6144, 16384, 48, 56, 65536),
}


def mixtral(sizes: MixtralSizes, head: HeadChoice) -> TextModel:
    if sizes.feed_forward_bias:
        raise QkvError("The experts of a Mixtral have no biases: leave out feed_forward_bias.")
    activation = find_activation(sizes.activation)

    def experts() -> GatedExperts:
        router = Router(sizes.width, sizes.experts, sizes.chosen, shares=of_chosen)
        return GatedExperts(sizes.width, sizes.hidden, router, activation)

    return assemble(sizes, head, experts)


FAMILIES = (
    Family(
        "mixtral",
        "a Llama with experts, two for each token",
        MixtralSizes,
        mixtral,
        SIZES,
        DECODER_HEADS,
    ),
)
