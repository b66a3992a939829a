"""Qwen3: a Llama that norms the queries and keys of each head, whose width is a size of its own. [yang2025 §2]"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from qkv.models.family import DECODER_HEADS, Family
from qkv.models.head_choice import HeadChoice
from qkv.models.llama import LlamaSizes, assemble, gated
from qkv.models.text_model import TextModel
from qkv.parts.norm import RMSNorm


@dataclass(frozen=True, kw_only=True)
class Qwen3Sizes(LlamaSizes):
    head_width: int = 128
    epsilon: float = 1e-6
    rotary_base: float = 1_000_000.0


def _published(width: int, hidden: int, heads: int, layers: int, tied: bool = False) -> Qwen3Sizes:
    return Qwen3Sizes(
        vocabulary=151936,
        positions=40960,
        width=width,
        hidden=hidden,
        heads=heads,
        key_value_heads=8,
        layers=layers,
        tied=tied,
    )


# [yang2025 tab.1]
SIZES = {
    "0.6b": _published(1024, 3072, 16, 28, tied=True),
    "1.7b": _published(2048, 6144, 16, 28, tied=True),
    "4b": _published(2560, 9728, 32, 36, tied=True),
    "8b": _published(4096, 12288, 32, 36),
    "14b": _published(5120, 17408, 40, 40),
    "32b": _published(5120, 25600, 64, 64),
}


def qwen3(sizes: Qwen3Sizes, head: HeadChoice) -> TextModel:
    return assemble(sizes, head, gated(sizes), head_norm=partial(RMSNorm, sizes.head_width, sizes.epsilon))


FAMILIES = (
    Family(
        "qwen3",
        "a Llama that norms the queries and keys of each head",
        Qwen3Sizes,
        qwen3,
        SIZES,
        DECODER_HEADS,
    ),
)
