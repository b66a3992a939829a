"""The usual step of decoding without detours: one new token a row, nothing hidden, nothing recorded.

A step does little arithmetic in many small operations, and on a CPU each of them, each call of a module and each
question of what else might be asked for takes as long as many numbers do. Whatever is not the usual step takes the way
it always took. These parts call the `forward` of others: a model that was made ready is nobody's to hang hooks on.

Shapes: b rows, h query heads, g key/value heads, k keys, d width of a key, e of a value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from qkv.generate.known import STRAIGHT
from qkv.generate.straight_memory import OF_SOURCE
from qkv.parts.attention.attention import Attention
from qkv.parts.attention.visibility import Everything, NotPadding
from qkv.parts.block import Block
from qkv.parts.context import Context
from qkv.parts.feedforward import MLP
from qkv.parts.residual import PreNorm


class StraightAttention(nn.Module):
    """An attention whose tokens see all that stands before them."""

    def __init__(self, whole: Attention) -> None:
        super().__init__()
        self.whole = whole
        self._project, self._out = _call(whole.project.together), _call(whole.out)
        self._sizes = (whole.query_size, whole.key_size, whole.value_size)
        self._heads, self._groups = whole.heads, whole.key_value_heads
        self._key_width, self._value_width, self._scale = whole.key_width, whole.value_width, whole.scale

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        rows, slots, _ = x.shape
        if slots != 1 or ctx.cache is None or not _plain(ctx, x):
            return self.whole.forward(x, ctx)
        q, k, v = self._project(x).split(self._sizes, -1)
        k, v = ctx.cache.extend(  # [b g k d] [b g k e]
            self.whole,
            k.view(rows, self._groups, 1, self._key_width),
            v.view(rows, self._groups, 1, self._value_width),
        )
        q = q.view(rows, self._heads, 1, self._key_width)
        grouped = self._groups != self._heads
        o = F.scaled_dot_product_attention(  # [b h 1 e]
            q, k, v, attn_mask=ctx.bias, scale=self._scale, enable_gqa=grouped
        )
        return self._out(o.view(rows, 1, -1))


def _plain(ctx: Context, x: Tensor) -> bool:
    """Whether nothing is said but where the tokens stand, and a bias that is no wider than the stream."""
    told = ctx.tokens.documents is None and isinstance(ctx.visibility, NotPadding | Everything)
    narrow = ctx.bias is None or ctx.bias.dtype == x.dtype
    return told and narrow and ctx.ledger is None and ctx.position_vectors is None


class StraightPreNorm(nn.Module):
    """x + mixer(norm(x)): what `PreNorm` is in evaluation."""

    def __init__(self, whole: PreNorm) -> None:
        super().__init__()
        self.norm, self.mixer = whole.norm, whole.mixer
        self._norm, self._mixer = whole.norm.forward, whole.mixer.forward

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        y: Tensor = x + self._mixer(self._norm(x, ctx), ctx)
        return y

    def branch(self, x: Tensor, ctx: Context) -> Tensor:
        """What is added, for reversible layers, whose streams are two."""
        y: Tensor = self._mixer(self._norm(x, ctx), ctx)
        return y


class StraightMLP(nn.Module):
    """activation(x W₁ + b₁) W₂ + b₂"""

    def __init__(self, whole: MLP) -> None:
        super().__init__()
        self.whole = whole
        self._inner, self._activation, self._outer = _call(whole.inner), whole.activation, _call(whole.outer)

    def forward(self, x: Tensor, ctx: Context | None = None) -> Tensor:
        return self._outer(self._activation(self._inner(x)))


class StraightBlock(nn.Module):
    """Its steps in order, under their names."""

    def __init__(self, whole: Block) -> None:
        super().__init__()
        for name, step in whole.named_children():
            self.add_module(name, step)
        self._steps = [step.forward for step in whole.children()]

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        for step in self._steps:
            x = step(x, ctx)
        return x


def straight(module: nn.Module) -> nn.Module | None:
    """What takes the place of a module of a model that is to decode, where anything does: its parts come first."""
    if STRAIGHT.refusal(module) is not None:
        return None
    found = next((made for kind, made in IN_PLACE_OF.items() if type(module) is kind), None)
    return None if found is None else found(module)


IN_PLACE_OF: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    Attention: StraightAttention,
    PreNorm: StraightPreNorm,
    MLP: StraightMLP,
    Block: StraightBlock,
    **OF_SOURCE,
}


def _call(part: Any) -> Callable[[Tensor], Tensor]:
    call: Callable[[Tensor], Tensor] = part.forward if isinstance(part, nn.Module) else part
    return call
