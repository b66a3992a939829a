"""A stack that can be run backwards: memory for one layer's activations, however many layers there are. [gomez2017 §3]

Two streams take turns, y₁ = x₁ + f(x₂) and y₂ = x₂ + g(y₁), so the inputs of a layer follow from its outputs:
x₂ = y₂ - g(y₁), x₁ = y₁ - f(x₂). Going back, each layer is computed once more from what comes after it, and nothing of
it is kept on the way forward. In Reformer f is attention and g the feed-forward. [kitaev2020 §3]

Shapes: b rows, s slots, d width of one stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.block import Block
from qkv.parts.context import Context
from qkv.parts.device import chance_of, set_chance
from qkv.parts.residual import PreNorm
from qkv.parts.spec import Depends


class ReversibleStack(nn.Module):
    """x → both streams → layer after layer → both streams side by side [b s 2d] → norm.

    Each block has two pre-norm steps, f and g, whose branches are used without their sums. Compiled, it is computed as
    any other stack is: what is kept for the way back is then the compiler's choice. Without numbers too, so that
    operations are counted as every stack's are, once forward and twice back.
    """

    depends_on = Depends("blocks", "norm", "dropout")

    def __init__(self, blocks: Iterable[Block], norm: nn.Module | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.blocks, self.norm, self.dropout = nn.ModuleList(blocks), norm, nn.Dropout(dropout)
        for block in self.blocks:
            steps = list(block.children())
            if len(steps) != 2 or not all(isinstance(step, PreNorm) for step in steps):
                raise QkvError("A reversible block has two pre-norm steps, such as attention and feed-forward.")

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        once = ctx.ledger is not None  # what is kept must not be computed twice
        if torch.is_grad_enabled() and not (once or x.is_meta or torch.compiler.is_compiling()):
            parameters = [parameter for parameter in self.blocks.parameters() if parameter.requires_grad]
            both = _Reversible.apply(_branches(self.blocks), ctx, x, x, *parameters)
        else:
            both = in_two_streams(self.blocks, x, x, ctx)
        joined = torch.cat(both, -1)  # [b s 2d]
        return self.dropout(joined if self.norm is None else self.norm(joined, ctx))


def in_two_streams(blocks: Iterable[nn.Module], x1: Tensor, x2: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
    """What a reversible stack computes, layer after layer: autograd keeps all of it."""
    for f, g in _branches(blocks):
        x1 = x1 + f.branch(x2, ctx)
        x2 = x2 + g.branch(x1, ctx)
    return x1, x2


def _branches(blocks: Iterable[nn.Module]) -> list[tuple[PreNorm, PreNorm]]:
    return [tuple(block.children()) for block in blocks]  # type: ignore[misc]


class _Reversible(torch.autograd.Function):
    """The whole stack as one step of autograd. The parameters are inputs so that their gradients have a way out."""

    @staticmethod
    def forward(
        ctx: Any,
        branches: list[tuple[PreNorm, PreNorm]],
        context: Context,
        x1: Tensor,
        x2: Tensor,
        *parameters: nn.Parameter,
    ) -> tuple[Tensor, Tensor]:
        chances = []  # dropout and hashing must draw the same again
        for f, g in branches:
            before_f = _Chance.now(x1.device)
            x1 = x1 + f.branch(x2, context)
            before_g = _Chance.now(x1.device)
            x2 = x2 + g.branch(x1, context)
            chances.append((before_f, before_g))
        ctx.branches, ctx.context, ctx.chances, ctx.parameters = branches, context, chances, parameters
        ctx.autocast = torch.is_autocast_enabled(x1.device.type), torch.get_autocast_dtype(x1.device.type)
        ctx.save_for_backward(x1, x2)
        return x1, x2

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Any, ...]:
        (y1, y2), (dy1, dy2) = ctx.saved_tensors, above
        gradients: dict[nn.Parameter, Tensor] = {}
        enabled, dtype = ctx.autocast
        with torch.autocast(y1.device.type, dtype, enabled=enabled, cache_enabled=False):  # no weight is met twice
            for (f, g), (before_f, before_g) in zip(ctx.branches[::-1], ctx.chances[::-1], strict=True):
                added, dx = _again(g, y1, ctx.context, before_g, dy2, gradients)
                y2, dy1 = y2 - added, dy1 + dx  # y2 is now x2
                added, dx = _again(f, y2, ctx.context, before_f, dy1, gradients)
                y1, dy2 = y1 - added, dy2 + dx
        return None, None, dy1, dy2, *(gradients.get(parameter) for parameter in ctx.parameters)


def _again(
    step: PreNorm, x: Tensor, context: Context, chance: _Chance, above: Tensor, gradients: dict[nn.Parameter, Tensor]
) -> tuple[Tensor, Tensor]:
    """Compute a branch once more: (what it adds, the gradient of its input); those of its parameters are gathered."""
    x = x.detach().requires_grad_()
    own = [parameter for parameter in step.parameters() if parameter.requires_grad]
    with torch.enable_grad(), chance.repeated():
        added = step.branch(x, context)
    dx, *found = torch.autograd.grad(added, [x, *own], above.to(added.dtype), allow_unused=True)
    for parameter, gradient in zip(own, found, strict=True):
        if gradient is not None:
            gradients[parameter] = gradients[parameter] + gradient if parameter in gradients else gradient
    return added.detach(), torch.zeros_like(x) if dx is None else dx


class _Chance:
    """The states of torch's random numbers at one moment."""

    def __init__(self, device: torch.device, host: Tensor, there: Tensor | None) -> None:
        self.device, self.host, self.there = device, host, there

    @staticmethod
    def now(device: torch.device) -> _Chance:
        return _Chance(device, torch.get_rng_state(), chance_of(device))

    @contextmanager
    def repeated(self) -> Iterator[None]:
        after = _Chance.now(self.device)
        self._put_back()
        try:
            yield
        finally:
            after._put_back()

    def _put_back(self) -> None:
        torch.set_rng_state(self.host)
        if self.there is not None:
            set_chance(self.device, self.there)
