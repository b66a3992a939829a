"""Self-attention by random features whose memory fades, at a pace that the stream sets. [peng2021 §3.2]

    g_t = σ(w·x_t + b),   S_t = g_t S_{t-1} + (1 - g_t) φ(k_t) v_tᵀ,   o_t = φ(q_t) S_t / φ(q_t) z_t

Shapes: b rows, s slots, h heads.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from qkv.parts.attention.attention import Attention, HeadOptions
from qkv.parts.attention.kernels.random_features import WaveFeatures
from qkv.parts.attention.summing import SummingAttention, options_of, taken_over
from qkv.parts.position import Rotary
from qkv.parts.precision import widened

SHORTEST, LONGEST = 8.0, 512.0  # tokens after which a head's memory has faded to 1/e, at first


class GatedAttention(SummingAttention):
    """Gated random feature attention: a mixer in the place of an `Attention` that looks back. [peng2021 eq.7]

    `GatedAttention.of(attention, features)` makes one of an `Attention`, as `SummingAttention.over` does; parameters
    `gate.*` and `kernel.features.*` are new. `features` are sines and cosines counted together.

    DIFFERS [peng2021]: gates begin so that heads remember spans from 8 to 512 tokens; the paper does not say how its
    gates begin, and a bias of 0 would forget half of everything with each token.
    """

    depends_on = Attention.depends_on.also("gate")

    def __init__(
        self,
        width: int,
        heads: int,
        features: int,
        *,
        redraw_every: int | None = None,
        rotary: Rotary | None = None,
        **options: Unpack[HeadOptions],
    ) -> None:
        waves = WaveFeatures(features, options.get("key_width") or width // heads, heads, redraw_every=redraw_every)
        super().__init__(width, heads, waves, rotary=rotary, **options)
        self.gate = nn.Linear(width, heads)
        spans = torch.logspace(0, 1, heads, base=LONGEST / SHORTEST) * SHORTEST
        with torch.no_grad():
            self.gate.weight.zero_()
            self.gate.bias.copy_((spans - 1).log())  # σ(b) = 1 - 1/span

    @classmethod
    def of(cls, attention: Attention, features: int, *, redraw_every: int | None = None) -> GatedAttention:
        """One with the projections of another attention, which are shared and not copied."""
        width, heads = attention.project.width, attention.heads
        return taken_over(
            GatedAttention(width, heads, features, redraw_every=redraw_every, **options_of(attention)), attention
        )

    def gates(self, x: Tensor) -> Tensor:
        return widened(self.gate(x)).sigmoid().transpose(1, 2)  # [b h s]
