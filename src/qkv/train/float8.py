"""Matrix products of blocks in 8 bits while a model trains. [micikevicius2022]

Weights stay float32 and the stream between products is bfloat16 or wider, as without; what a product multiplies is
rounded to 8 bits, row by row (`float8_rows.py`). Under a compiler that is part of the norm, activation or gradient in
front of it, which then writes half the bytes; elsewhere it is a program of one pass. What waits for the way back is
held in 8 bits too. There hardware wants all matrices with the numbers of a sum side by side: what was rounded by rows
is turned, and a bias gets its gradient in the same pass.

DIFFERS [micikevicius2022]: scales are those of rows, and powers of two; gradients have 4 bits of exponent like all
else, which is range enough for one row, and 3 of mantissa.

Weights are rounded at each use: at 4 bytes of some millions that takes a hundredth of the step, and torch's counter of
writes, by which one could tell old ones, is not moved by fused optimizers.

The vocabulary's product is not in a block and stays in bfloat16: what it makes is the loss itself.

Shapes: m rows, k width of the input, n of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from qkv.errors import QkvError
from qkv.parts.block import Block
from qkv.parts.context import Context
from qkv.parts.feedforward import MLP, programmed_name
from qkv.parts.linear import JoinedLinear
from qkv.parts.precision import narrowed
from qkv.parts.programs import unwatched
from qkv.train.float8_feed_forward import float8_feed_forward
from qkv.train.float8_product import of_type, product, type_on
from qkv.train.float8_rows import rounded, turned

MULTIPLE = 16  # of all three sizes, which the hardware wants
OLDEST = (8, 9)  # compute capability


@contextmanager
def float8_products(model: nn.Module) -> Iterator[None]:
    """Inside, the linear maps of every `Block` multiply in 8 bits, forward and back.

    Maps whose sizes are no multiples of 16 stay as they are, and so do all for a number of rows that is none. Enter
    it before blocks are compiled.
    """
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    inside = [module for block in blocks for module in block.modules()]
    # What is derived from these computes in its own way.
    single = [each for each in inside if type(each) is nn.Linear and _fits(each.weight)]
    joined = [each for each in inside if type(each) is JoinedLinear and _fits(each.weight)]
    if not single and not joined:
        raise QkvError(
            "No linear map of this model can multiply in 8 bits: it needs blocks whose widths are multiples of 16; "
            "take precision bfloat16."
        )
    # Names, hooks and weights stay those of the modules.
    whole = [each for each in inside if type(each) is MLP and {each.inner, each.outer} <= set(single)]
    for mixer in whole:
        mixer.forward = partial(_feed_forward, mixer, mixer.forward)  # type: ignore[method-assign]
    for module in single:
        module.forward = partial(_single, module, module.forward)  # type: ignore[method-assign]
    for several in joined:
        several.together = partial(_joined, several, several.together)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for each in (*whole, *single):
            del each.forward
        for several in joined:
            del several.together


def check_float8(device: torch.device, ranks: int) -> None:
    """What cannot multiply in 8 bits is named before anything is built."""
    if ranks > 1:
        raise QkvError("Products in 8 bits are for one process so far: take precision bfloat16 for several ranks.")
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < OLDEST:
        raise QkvError(
            f"{torch.cuda.get_device_name(device)} cannot multiply in 8 bits: take precision bfloat16, or a GPU of "
            "compute capability 8.9 or more."
        )


def float8_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b in the type of x, or the one autocast gives it. x [… k], weight [n k], bias [n] → [… n]"""
    x = narrowed(x)
    y: Tensor = _Linear.apply(x.flatten(0, -2), weight, bias)
    return y.unflatten(0, x.shape[:-1])


class _Linear(torch.autograd.Function):
    """[m k] · [n k]ᵀ + [n]"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        narrow_x, of_x = rounded(x)
        narrow_weight, of_weight = rounded(weight)
        ctx.save_for_backward(narrow_x, of_x, narrow_weight, of_weight)
        ctx.types = x.dtype, weight.dtype, None if bias is None else bias.dtype
        y = product(narrow_x, narrow_weight.t(), of_x, of_weight.t(), type_on(x.device), bias, quick=True)
        return of_type(y, x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        x, of_x, weight, of_weight = ctx.saved_tensors
        kind, kind_of_weight, kind_of_bias = ctx.types
        above, of_above = rounded(above)
        # On the way to the weights rows are summed, which have a scale on either side. Both go with the gradient.
        both = of_above * of_x  # [m 1]
        top, top_of_weight = both.amax(), of_weight.amax()
        of_columns, one = top_of_weight.expand(1, weight.shape[1]).contiguous(), torch.ones_like(top)
        go_back = _back if unwatched(above) else _back_as_operator
        to_x, to_weight, to_bias = go_back(
            above, of_above, x, weight, of_weight, top_of_weight, of_columns, both, top, one
        )
        return to_x.to(kind), to_weight.to(kind_of_weight), None if kind_of_bias is None else to_bias.to(kind_of_bias)


def _back(
    above: Tensor, of_above: Tensor, x: Tensor, weight: Tensor, of_weight: Tensor, top_of_weight: Tensor,
    of_columns: Tensor, both: Tensor, top: Tensor, one: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x [m k], weight [n k] and bias [n]."""
    weight, _ = turned(weight, of_weight, top_of_weight)  # [k n]
    to_x = product(above, weight.t(), of_above, of_columns, type_on(above.device))
    above, to_bias = turned(above, both, top, of_above)  # [n m], [n]
    assert to_bias is not None
    x, _ = turned(x)  # [k m]
    return to_x, product(above, x.t(), top, one, torch.float32), to_bias


_back_as_operator = torch.library.custom_op("qkv::float8_backward", _back, mutates_args=())


@_back_as_operator.register_fake
def _(
    above: Tensor, of_above: Tensor, x: Tensor, weight: Tensor, of_weight: Tensor, top_of_weight: Tensor,
    of_columns: Tensor, both: Tensor, top: Tensor, one: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    to_weight = torch.empty_like(weight, dtype=torch.float32)
    return torch.empty_like(x, dtype=type_on(x.device)), to_weight, to_weight.new_empty(len(weight))


def _fits(weight: Tensor) -> bool:
    return all(size % MULTIPLE == 0 for size in weight.shape)


def _whole(x: Tensor) -> bool:
    rows = x.shape[:-1].numel()
    return rows > 0 and rows % MULTIPLE == 0


def _single(module: nn.Linear, wide: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return float8_linear(x, module.weight, module.bias) if _whole(x) else wide(x)


def _joined(module: JoinedLinear, wide: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return float8_linear(x, module.matrix(), module.whole_bias()) if _whole(x) else wide(x)


def _feed_forward(module: MLP, apart: Callable[..., Tensor], x: Tensor, ctx: Context | None = None) -> Tensor:
    """Both maps at once, where nothing is between them but an activation that programs know."""
    name = programmed_name(module.activation)
    dropping = module.training and module.dropout.p > 0
    watched = any(
        each._forward_hooks or each._forward_pre_hooks or each._backward_hooks or each._backward_pre_hooks
        for each in (module.inner, module.outer)
    )
    if name is None or dropping or watched or not _whole(x):
        return apart(x, ctx)
    return float8_feed_forward(x, module.inner, module.outer, name)
