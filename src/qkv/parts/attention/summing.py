"""Self-attention by random features that looks back: a decoder keeps sums and no earlier token.

    S_t = S_{t-1} + φ(k_t) v_tᵀ,   z_t = z_{t-1} + φ(k_t),   o_t = φ(q_t) S_t / φ(q_t) z_t

A step costs the same, and keeps the same, whatever came before. [choromanski2021 §2.2]

Shapes: b rows, s slots, h heads.
"""

from __future__ import annotations

from typing import TypeVar, Unpack

from torch import Tensor

from qkv.errors import QkvError
from qkv.parts.attention.attention import Attention, HeadOptions
from qkv.parts.attention.kernels.random_features import RandomDirections, RandomFeatureKernel, Sums
from qkv.parts.attention.kernels.refusals import refuse_dropout, refuse_recording
from qkv.parts.attention.visibility import Causal
from qkv.parts.attention.whole_rows import looks_ahead, real_keys, rules_of
from qkv.parts.context import Context
from qkv.parts.position import Rotary

Made = TypeVar("Made", bound=Attention)


class SummingAttention(Attention):
    """A mixer in the place of an `Attention` that looks back, computed by the features it is given.

    `SummingAttention.over(attention, features)` makes one of an `Attention` and takes its projections, rotation and
    rule over: the same parameters under the same names, beside those of `kernel.features`. It has no dropout on weights
    that it never forms, and asks for none.
    """

    depends_on = Attention.depends_on.also()

    def __init__(
        self,
        width: int,
        heads: int,
        features: RandomDirections,
        *,
        rotary: Rotary | None = None,
        **options: Unpack[HeadOptions],
    ) -> None:
        options.setdefault("visibility", Causal())
        super().__init__(width, heads, rotary=rotary, **options)
        if self.kernel is not None:
            raise QkvError("An attention that keeps sums has a kernel of its own, of random features: give none.")
        if not any(isinstance(rule, Causal) for rule in rules_of(self.visibility)):
            raise QkvError("Sums over earlier tokens need an order: such an attention must look back alone.")
        self.kernel = RandomFeatureKernel(features)

    @classmethod
    def over(cls, attention: Attention, features: RandomDirections) -> SummingAttention:
        """One with the projections of another attention, which are shared and not copied."""
        made = SummingAttention(attention.project.width, attention.heads, features, **options_of(attention))
        return taken_over(made, attention)

    def gates(self, x: Tensor) -> Tensor | None:
        """How much of the sums is left with each token [b h s]; None: all of them, and the token is added."""
        return None

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.ledger is not None and ctx.ledger.wants("weights"):
            refuse_recording("random-feature", ctx.ledger)
        refuse_dropout("random-feature", self.dropout)
        if ctx.bias is not None:
            raise QkvError("Random features cannot add a bias to scores that they never form: use another attention.")
        q, k, v = self.projected(x, ctx)
        mask = ctx.mask(self.visibility, ctx.tokens, ctx.tokens, x.device)
        looks_ahead(mask)  # refuses what is neither look-ahead nor padding
        kept = None if ctx.cache is None else ctx.cache.sums(self)
        sums = None if kept is None else Sums(*kept)
        assert isinstance(self.kernel, RandomFeatureKernel)
        o, sums = self.kernel.looking_back(q, k, v, real_keys(mask), sums, scale=self.scale, gates=self.gates(x))
        if ctx.cache is not None:
            ctx.cache.keys(ctx.tokens)  # which says so where tokens do not follow those that it has seen
            ctx.cache.keep_sums(self, tuple(sums))
        return self.out(o.transpose(1, 2).flatten(2))


def options_of(attention: Attention) -> HeadOptions:
    """What an attention that forms no weights is told, to be like another."""
    return {
        "key_value_heads": attention.key_value_heads,
        "key_width": attention.key_width,
        "value_width": attention.value_width,
        "scale": attention.scale,
        "visibility": attention.visibility,
    }


def taken_over(made: Made, attention: Attention) -> Made:
    """`made` with the projections and the rotation of another attention, where that is and as that is."""
    made.to(attention.project.weight)
    made.project, made.out, made.biases = attention.project, attention.out, attention.biases
    made.rotary = attention.rotary
    return made.train(attention.training)
