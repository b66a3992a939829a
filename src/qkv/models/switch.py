"""Switch Transformer: a T5 in which some blocks have many feed-forwards, and each token uses one. [fedus2022 §2]"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.models.family import Family
from qkv.models.sequence_to_sequence import EncoderDecoder
from qkv.models.t5 import T5Sizes, assemble, dense, initialise
from qkv.parts.experts import Experts, GatedExperts, Mixture
from qkv.parts.feedforward import gelu_tanh, relu, silu
from qkv.parts.grouped import GroupedLinear
from qkv.parts.routing import Capacity, Router


@dataclass(frozen=True, kw_only=True)
class SwitchSizes(T5Sizes):
    experts: int
    encoder_step: int = 2  # one block with experts in so many, from the second on; 1: all of them
    decoder_step: int = 2
    capacity: int | None = None  # tokens of a text that one expert takes; None: as many as choose it
    capacity_factor: float | None = None  # the same, as a multiple of an even split [fedus2022 eq.3]
    jitter: float = 0.01  # of what the routers read in training
    router_bias: bool = False
    expert_dropout: float | None = None  # of the experts' hidden units; None: as elsewhere


EXPERTS: dict[str, Callable[..., Mixture]] = {
    "relu": partial(Experts, activation=relu),
    "gelu": partial(Experts, activation=gelu_tanh),
    "gated-gelu": partial(GatedExperts, activation=gelu_tanh),
    "gated-silu": partial(GatedExperts, activation=silu),
}


def _published(experts: int, width: int, hidden: int, heads: int, layers: int, step: int = 2) -> SwitchSizes:
    return SwitchSizes(
        vocabulary=32128,
        width=width,
        key_width=64,
        hidden=hidden,
        heads=heads,
        encoder_layers=layers,
        decoder_layers=layers,
        experts=experts,
        encoder_step=step,
        decoder_step=step,
        capacity=64,
    )


# As their checkpoints have them; the largest is that of [fedus2022 tab.9].
SIZES = {
    "base-8": _published(8, 768, 3072, 12, 12),
    "base-16": _published(16, 768, 3072, 12, 12),
    "base-32": _published(32, 768, 3072, 12, 12),
    "base-64": _published(64, 768, 3072, 12, 12),
    "base-128": _published(128, 768, 3072, 12, 12),
    "base-256": _published(256, 768, 3072, 12, 12),
    "large-128": _published(128, 1024, 4096, 16, 24),
    "c-2048": _published(2048, 2080, 6144, 32, 15, step=1),
}


def switch(sizes: SwitchSizes) -> EncoderDecoder:
    model = assemble(
        sizes, partial(_feed_forward, sizes, sizes.encoder_step), partial(_feed_forward, sizes, sizes.decoder_step)
    )
    initialise(model, sizes)
    for module in model.modules():
        if isinstance(module, GroupedLinear | Router):
            _initialise_small(
                module.weight, inputs=sizes.width if isinstance(module, Router) else module.weight.shape[1]
            )
    return model


def has_experts(layer: int, step: int) -> bool:
    """Whether the block of this number, from 0, is one of those with experts."""
    return step == 1 or layer % step == 1


def _feed_forward(sizes: SwitchSizes, step: int, layer: int) -> nn.Module:
    """Experts or one feed-forward, by the number of the block."""
    if not has_experts(layer, step):
        return dense(sizes)
    if sizes.feed_forward not in EXPERTS:
        raise QkvError(f"Switch has no feed-forward called {sizes.feed_forward}: there are {', '.join(EXPERTS)}.")
    capacity = None
    if sizes.capacity is not None or sizes.capacity_factor is not None:
        capacity = Capacity(sizes.capacity, sizes.capacity_factor)
    router = Router(sizes.width, sizes.experts, capacity=capacity, jitter=sizes.jitter, bias=sizes.router_bias)
    dropout = sizes.dropout if sizes.expert_dropout is None else sizes.expert_dropout
    return EXPERTS[sizes.feed_forward](sizes.width, sizes.hidden, router, dropout=dropout)


def _initialise_small(weight: Tensor, inputs: int) -> None:
    """N(0, s / inputs) without what lies beyond two deviations, and s = 0.1, not 1. [fedus2022 §2.4]

    DIFFERS [fedus2022]: the rest of the model begins as T5 does; the paper shrinks that too.
    """
    deviation = math.sqrt(0.1 / inputs)
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


FAMILIES = (
    Family(
        "switch",
        "a T5 with many feed-forwards in some blocks, one for each token",
        SwitchSizes,
        switch,
        SIZES,
    ),
)
