"""Matrix products of blocks in 8 bits while a model trains. [micikevicius2022]

Weights stay float32 and the stream between products is bfloat16 or wider, as without; what a product multiplies is
rounded to 8 bits, row by row (`rows.py`). Under a compiler that is part of the norm or gradient in front of it,
which then writes half the bytes; elsewhere it is a program of one pass. What waits for the way back is held in 8 bits
too. There hardware wants all matrices with the numbers of a sum side by side: what was rounded by rows is turned, and a
bias gets its gradient in the same pass. A feed-forward is one function (`feed_forward.py`), and so are joined
maps (`maps.py`), whose gradients come apart. Where all parts of a stack are known, all from one attention to the
next is one (`stream.py`), with nothing to compile.

DIFFERS [micikevicius2022]: scales are those of rows, and powers of two; gradients have 4 bits of exponent like all
else, which is range enough for one row, and 3 of mantissa.

Weights are rounded at each use: at 4 bytes of some millions that takes a hundredth of the step, and torch's counter of
writes, by which one could tell old ones, is not moved by fused optimizers.

The vocabulary's product is not in a block and stays in bfloat16: what it makes is the loss itself. Only the gradient
that goes from there into the last block is a product in 8 bits (`objectives/linear_cross_entropy.py`), of slopes with 5
bits of exponent: a row has 50,000 of them that are small together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.block import Block
from qkv.parts.context import Context
from qkv.parts.feedforward import MLP, programmed_name
from qkv.parts.heads import ENDS_IN_PRODUCT
from qkv.parts.linear import JoinedLinear
from qkv.parts.stack import Stack
from qkv.train.float8.feed_forward import float8_feed_forward
from qkv.train.float8.known import way_of
from qkv.train.float8.maps import float8_joined, float8_linear

MULTIPLE = 16  # of all three sizes, which the hardware wants
OLDEST = (8, 9)  # compute capability


@contextmanager
def float8_products(model: nn.Module) -> Iterator[None]:
    """Inside, the linear maps of every `Block` multiply in 8 bits, forward and back.

    The gradient that a vocabulary hands to the last of them is such a product, too (`linear_cross_entropy.py`).
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
    apart = [each for each in joined if 1 < len(each.outputs) < 4 and _all_fit(each.outputs.values())]
    for several in apart:
        several.forward = partial(_apart, several, several.forward)  # type: ignore[method-assign]
    narrowed = {each: each.forward for each in (*whole, *single, *apart)}
    stacks = [module for module in model.modules() if type(module) is Stack]
    for stack in stacks:
        stack.__dict__["in_eight_bits"] = way_of(stack, narrowed, MULTIPLE)
    heads = [module for module in model.modules() if isinstance(module, ENDS_IN_PRODUCT)]
    for head in heads:
        head.__dict__["in_eight_bits"] = True
    try:
        yield
    finally:
        for marked in (*stacks, *heads):
            del marked.__dict__["in_eight_bits"]
        for each in (*whole, *single, *apart):
            del each.forward
        for several in joined:
            del several.together


def check_float8(device: torch.device, ranks: int) -> None:
    """What cannot multiply in 8 bits is named before anything is built."""
    if ranks > 1:
        raise QkvError("Products in 8 bits are for one process so far: take precision bfloat16 for several ranks.")
    if device.type not in ("cpu", "cuda") or torch.version.hip is not None:
        raise QkvError(f"Products in 8 bits are for GPUs by NVIDIA, and not for {device.type}: take precision float32.")
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < OLDEST:
        raise QkvError(
            f"{torch.cuda.get_device_name(device)} cannot multiply in 8 bits: take precision bfloat16, or a GPU of "
            "compute capability 8.9 or more."
        )


def _fits(weight: Tensor) -> bool:
    return _all_fit(weight.shape)


def _all_fit(sizes: Iterable[int]) -> bool:
    return all(size % MULTIPLE == 0 for size in sizes)


def _whole(x: Tensor) -> bool:
    rows = x.shape[:-1].numel()
    return rows > 0 and rows % MULTIPLE == 0


def _single(module: nn.Linear, wide: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return float8_linear(x, module.weight, module.bias) if _whole(x) else wide(x)


def _joined(module: JoinedLinear, wide: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return float8_linear(x, module.matrix(), module.whole_bias()) if _whole(x) else wide(x)


def _apart(module: JoinedLinear, wide: Callable[[Tensor], tuple[Tensor, ...]], x: Tensor) -> tuple[Tensor, ...]:
    if not _whole(x):
        return wide(x)
    return float8_joined(x, module.matrix(), module.whole_bias(), tuple(module.outputs.values()))


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
