"""Memory for time: a block keeps its input alone, and computes all else once more on the way back. [chen2016 §4]

Good in one process and in many.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qkv.errors import QkvError
from qkv.parts.block import Block
from qkv.parts.context import Context
from qkv.parts.reversible import ReversibleStack
from qkv.train.parallel.gathered_keys import GatheredKeys

Forward = Callable[[Tensor, Context], Tensor]


@contextmanager
def recompute_blocks(model: nn.Module) -> Iterator[None]:
    """Inside, every `Block` forgets on the way forward what is within it. Gradients are the same to the last bit.

    Where blocks are compiled too, compile them first: `with compiled_blocks(model), recompute_blocks(model)`.
    """
    if any(isinstance(module, ReversibleStack) for module in model.modules()):
        raise QkvError(
            "The layers of this model are computed from those after them on the way back, and keep nothing as it is: "
            "leave recompute out."
        )
    blocks: list[nn.Module] = [module for module in model.modules() if isinstance(module, Block)]
    if not blocks:
        raise QkvError("This model has no blocks that could be computed once more: leave recompute out.")
    own = [block.__dict__.get("forward") for block in blocks]  # those that are compiled
    for block in blocks:
        block.forward = _forgetful(block.forward)
    try:
        yield
    finally:
        for block, forward in zip(blocks, own, strict=True):
            if forward is None:
                del block.forward
            else:
                block.forward = forward


def _forgetful(forward: Forward) -> Forward:
    def forgetting(x: Tensor, ctx: Context) -> Tensor:
        decodes = ctx.cache is not None and not isinstance(ctx.cache, GatheredKeys)
        if decodes or not torch.is_grad_enabled():  # a cache would take the same tokens twice
            return forward(x, ctx)
        y: Tensor = checkpoint(_Twice(forward, ctx), x, use_reentrant=False)
        return y

    return forgetting


class _Twice:
    """A block that may run again, and must then find and do what it found and did the first time.

    What it wrote into the ledger then has gradients like all that it gave; what it writes afterwards goes nowhere.
    Masks that it made for those behind it, it makes once more: a mask added to a bias has gradients, too.
    """

    def __init__(self, forward: Forward, ctx: Context) -> None:
        self.forward, self.ctx, self.ran = forward, ctx, False
        self.masks = [copy(mask) for mask in ctx.masks]

    def __call__(self, x: Tensor) -> Tensor:
        ctx = self.ctx
        if self.ran:
            ledger = None if ctx.ledger is None else ctx.ledger.empty_page()
            ctx = replace(ctx, ledger=ledger, masks=[copy(mask) for mask in self.masks])
        self.ran = True
        return self.forward(x, ctx)
