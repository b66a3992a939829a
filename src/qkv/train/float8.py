"""Matrix products of blocks in 8 bits while a model trains. [micikevicius2022]

Weights stay float32 and the stream between products is bfloat16, as without; what a product multiplies is rounded to 8
bits, after a scale of its own has made its largest number the largest that 8 bits hold. Inputs and weights have a
sign, 4 bits of exponent and 3 of mantissa, gradients 5 and 2, because they spread wider. [micikevicius2022 §3.1]

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

FINE, WIDE = torch.float8_e4m3fn, torch.float8_e5m2
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
    y = _Product.apply(x.flatten(0, -2), weight).unflatten(0, x.shape[:-1])
    return y if bias is None else y + bias.to(y.dtype)


class _Product(torch.autograd.Function):
    """[m k] · [n k]ᵀ. What waits for the way back is held in 8 bits: half of what bfloat16 takes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        narrow_x, scale_x = _rounded(x, FINE)
        narrow_weight, scale_weight = _rounded(weight, FINE)
        ctx.save_for_backward(narrow_x, scale_x, narrow_weight, scale_weight)
        ctx.types = x.dtype, weight.dtype
        return _product(narrow_x, narrow_weight.t(), scale_x, scale_weight, x.dtype, quick=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, Tensor]:
        x, scale_x, weight, scale_weight = ctx.saved_tensors
        of_x, of_weight = ctx.types
        above, scale = _rounded(above, WIDE)
        to_x = _product(above, _by_columns(weight), scale, scale_weight, of_x)  # [m n] · [n k]
        to_weight = _product(above.t().contiguous(), _by_columns(x), scale, scale_x, of_x)  # [n m] · [m k]
        return to_x, to_weight.to(of_weight)


def _product(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, kind: torch.dtype, quick: bool = False) -> Tensor:
    """a by rows, b by columns. `quick`: sums are kept in fewer bits, which is fine enough on the way forward."""
    if not a.is_cuda:  # no fast product there: the same numbers in wide ones
        return (a.float() @ b.float() * (scale_a * scale_b)).to(kind)
    product: Tensor = torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=kind, use_fast_accum=quick)
    return product


def _rounded(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """(x over a scale, in 8 bits; the scale [] in float32)"""
    largest = torch.finfo(kind).max
    scale = x.detach().abs().amax().float().clamp(min=1e-30) / largest
    # A number that is not finite stays so: the update is skipped for it.
    return (x.float() / scale).clamp(-largest, largest).to(kind), scale


def _by_columns(x: Tensor) -> Tensor:
    """The same numbers, those of one column side by side."""
    return x.t().contiguous().t()


def _fits(weight: Tensor) -> bool:
    return all(size % MULTIPLE == 0 for size in weight.shape)


def _whole(x: Tensor) -> bool:
    return x.shape[:-1].numel() % MULTIPLE == 0


def _single(module: nn.Linear, wide: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return float8_linear(x, module.weight, module.bias) if _whole(x) else wide(x)


def _joined(module: JoinedLinear, wide: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return float8_linear(x, module.matrix(), module.whole_bias()) if _whole(x) else wide(x)
