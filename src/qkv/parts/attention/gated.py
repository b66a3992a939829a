"""Self-attention by random features whose memory fades, at a pace that the stream sets. [peng2021 §3.2]

    g_t = σ(w·x_t + b),   S_t = g_t S_{t-1} + (1 - g_t) φ(k_t) v_tᵀ,   o_t = φ(q_t) S_t / φ(q_t) z_t

A decoder keeps S and z of each head and no earlier token: a step costs the same whatever came before.

Shapes: b rows, s slots, h heads.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.attention.attention import Attention, HeadOptions
from qkv.parts.attention.kernels.random_features import RandomFeatureKernel, Sums, WaveFeatures
from qkv.parts.attention.kernels.refusals import refuse_dropout, refuse_recording
from qkv.parts.attention.visibility import Causal
from qkv.parts.attention.whole_rows import looks_ahead, real_keys, rules_of
from qkv.parts.context import Context
from qkv.parts.position import Rotary
from qkv.parts.precision import widened

SHORTEST, LONGEST = 8.0, 512.0  # tokens after which a head's memory has faded to 1/e, at first


class GatedAttention(Attention):
    """Gated random feature attention: a mixer in the place of an `Attention` that looks back. [peng2021 eq.7]

    `GatedAttention.of(attention, features)` makes one of an `Attention` and takes its projections, rotation and rule
    over: the same parameters under the same names, beside new ones `gate.*` and `kernel.features.*`. `features` are
    sines and cosines counted together. It has no dropout on weights that it never forms, and asks for none.

    DIFFERS [peng2021]: gates begin so that heads remember spans from 8 to 512 tokens; the paper does not say how its
    gates begin, and a bias of 0 would forget half of everything with each token.
    """

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
        options.setdefault("visibility", Causal())
        super().__init__(width, heads, rotary=rotary, **options)
        if self.kernel is not None:
            raise QkvError("Gated attention has a kernel of its own, of random features: give none.")
        if not any(isinstance(rule, Causal) for rule in rules_of(self.visibility)):
            raise QkvError("A memory that fades with each token needs an order: gated attention must look back alone.")
        self.kernel = RandomFeatureKernel(WaveFeatures(features, self.key_width, heads, redraw_every=redraw_every))
        self.gate = nn.Linear(width, heads)
        spans = torch.logspace(0, 1, heads, base=LONGEST / SHORTEST) * SHORTEST
        with torch.no_grad():
            self.gate.weight.zero_()
            self.gate.bias.copy_((spans - 1).log())  # σ(b) = 1 - 1/span

    @classmethod
    def of(cls, attention: Attention, features: int, *, redraw_every: int | None = None) -> GatedAttention:
        """One with the projections of another attention, which are shared and not copied."""
        made = cls(
            attention.project.width,
            attention.heads,
            features,
            redraw_every=redraw_every,
            rotary=attention.rotary,
            key_value_heads=attention.key_value_heads,
            key_width=attention.key_width,
            value_width=attention.value_width,
            visibility=attention.visibility,
        ).to(attention.project.weight)
        made.project, made.out, made.biases = attention.project, attention.out, attention.biases
        made.train(attention.training)
        return made

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.ledger is not None and ctx.ledger.wants("weights"):
            refuse_recording("random-feature", ctx.ledger)
        refuse_dropout("random-feature", self.dropout)
        if ctx.bias is not None:
            raise QkvError("Random features cannot add a bias to scores that they never form: use another attention.")
        q, k, v = self.projected(x, ctx)
        gates = widened(self.gate(x)).sigmoid().transpose(1, 2)  # [b h s]
        mask = ctx.mask(self.visibility, ctx.tokens, ctx.tokens, x.device)
        looks_ahead(mask)  # refuses what is neither look-ahead nor padding
        kept = None if ctx.cache is None else ctx.cache.sums(self)
        sums = None if kept is None else Sums(*kept)
        assert isinstance(self.kernel, RandomFeatureKernel)
        o, sums = self.kernel.looking_back(q, k, v, real_keys(mask), sums, gates=gates)
        if ctx.cache is not None:
            ctx.cache.keys(ctx.tokens)  # which says so where tokens do not follow those that it has seen
            ctx.cache.keep_sums(self, tuple(sums))
        return self.out(o.transpose(1, 2).flatten(2))
