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
from qkv.parts.linear import JoinedLinear
from qkv.parts.precision import narrowed
from qkv.parts.programs import unwatched
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
    for module in single:
        module.forward = partial(_single, module, module.forward)  # type: ignore[method-assign]
    for several in joined:
        several.together = partial(_joined, several, several.together)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for module in single:
            del module.forward
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
        y = _product(narrow_x, narrow_weight.t(), of_x, of_weight.t(), _type_on(x.device), bias, quick=True)
        return _of_type(y, x.dtype)

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
    to_x = _product(above, weight.t(), of_above, of_columns, _type_on(above.device))
    above, to_bias = turned(above, both, top, of_above)  # [n m], [n]
    assert to_bias is not None
    x, _ = turned(x)  # [k m]
    return to_x, _product(above, x.t(), top, one, torch.float32), to_bias


_back_as_operator = torch.library.custom_op("qkv::float8_backward", _back, mutates_args=())


@_back_as_operator.register_fake
def _(
    above: Tensor, of_above: Tensor, x: Tensor, weight: Tensor, of_weight: Tensor, top_of_weight: Tensor,
    of_columns: Tensor, both: Tensor, top: Tensor, one: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    to_weight = torch.empty_like(weight, dtype=torch.float32)
    return torch.empty_like(x, dtype=_type_on(x.device)), to_weight, to_weight.new_empty(len(weight))


def _type_on(device: torch.device) -> torch.dtype:
    """Of products by rows: a GPU gives no wider one."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def _of_type(x: Tensor, kind: torch.dtype) -> Tensor:
    """As `x.to(kind)`, which names x anew even if it leaves it as it is.

    A function may not return what has two names: compiled by torch 2.11 it gets zeros for a gradient (pytorch/180642).
    """
    return x if x.dtype is kind else x.to(kind)


def _product(
    a: Tensor, b: Tensor, of_a: Tensor, of_b: Tensor, kind: torch.dtype, bias: Tensor | None = None, quick: bool = False
) -> Tensor:
    """a by rows, b by columns, with scales [m 1] and [1 n], or one for all of a and one for all of b.

    `quick`: sums are kept in fewer bits, which is fine enough on the way forward.
    """
    if not a.is_cuda:  # no fast product there: the same numbers in wide ones
        wide = a.float() @ b.float() * (of_a * of_b)
        return _of_type(wide if bias is None else wide + bias, kind)
    bias = None if bias is None else bias.to(kind)
    product: Tensor = torch._scaled_mm(
        a, b, scale_a=of_a, scale_b=of_b, bias=bias, out_dtype=kind, use_fast_accum=quick
    )
    return product


def _fits(weight: Tensor) -> bool:
    return all(size % MULTIPLE == 0 for size in weight.shape)


def _whole(x: Tensor) -> bool:
    rows = x.shape[:-1].numel()
    return rows > 0 and rows % MULTIPLE == 0


def _single(module: nn.Linear, wide: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return float8_linear(x, module.weight, module.bias) if _whole(x) else wide(x)


def _joined(module: JoinedLinear, wide: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return float8_linear(x, module.matrix(), module.whole_bias()) if _whole(x) else wide(x)
