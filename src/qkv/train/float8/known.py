"""Which stacks pass as a stream in 8 bits (`stream.py`): those whose parts are all known, in each pass anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from qkv.parts.attention.attention import Attention
from qkv.parts.block import Block
from qkv.parts.context import Context
from qkv.parts.feedforward import MLP, programmed_name
from qkv.parts.linear import JoinedLinear
from qkv.parts.norm import numbers_of
from qkv.parts.programs import is_itself
from qkv.parts.residual import PreNorm
from qkv.parts.spec import Honoured, Known, anything
from qkv.parts.stack import Stack
from qkv.train.float8.stream import Steps, float8_stream
from qkv.train.streamed import is_plain_norm, watched

# What heads make of queries, keys and values is the attention's own.
IN_8_BITS = Honoured(
    Known(PreNorm, "norm mixer dropout path"),
    Known(nn.Dropout, "p inplace"),
    Known(Attention, "heads key_value_heads key_width value_width scale dropout project out rotary query_norm key_norm",
          visibility=anything),
)  # fmt: skip
Narrowed = Mapping[nn.Module, Any]  # modules, and the ways forward in 8 bits that they were given


def way_of(stack: Stack, narrowed: Narrowed, multiple: int) -> Callable[[Tensor, Context], Tensor | None]:
    """The way forward of a stack in 8 bits, which answers nothing where it has to be taken part by part."""

    def forward(x: Tensor, ctx: Context) -> Tensor | None:
        if x.shape[:-1].numel() % multiple or not _is_known(stack, x, narrowed):
            return None
        blocks = [_steps_of(stack.blocks[number]) for number in stack.order]
        return stack.dropout(float8_stream(blocks, stack.norm, x, stack.with_bias(ctx)))

    return forward


def _is_known(stack: Stack, x: Tensor, narrowed: Narrowed) -> bool:
    blocks = list(stack.blocks)
    return (
        len(blocks) > 0
        and stack.norm is not None
        and is_plain_norm(stack.norm, x)
        and all(type(block) is Block and len(block._modules) == 2 for block in blocks)
        and not any(watched(module) for block in blocks for module in block.modules())
        and all(_is_known_block(*_steps_of(block), x, narrowed) for block in blocks)
        and len({_make_of(*_steps_of(block)) for block in blocks}) == 1  # bounds of all are found together
    )


def _is_known_block(first: Any, second: Any, x: Tensor, narrowed: Narrowed) -> bool:
    for step in (first, second):
        if type(step) is not PreNorm or not all(map(is_itself, (step, step.dropout, step.path))):
            return False
        if step.training and (step.dropout.p > 0 or step.path.rate > 0):
            return False
        if not is_plain_norm(step.norm, x):
            return False
    attention, mlp = first.mixer, second.mixer
    if any(IN_8_BITS.of(type(each)).refusal(each) for each in (first, second, first.dropout, second.dropout)):
        return False
    # No kernel but softmax keeps what heads read among the values.
    if type(attention) is not Attention or IN_8_BITS.of(Attention).refusal(attention) is not None:
        return False
    if type(mlp) is not MLP or not _is_mlp(mlp) or type(attention.project) is not JoinedLinear:
        return False
    if attention.training and (attention.dropout or mlp.dropout.p):
        return False
    maps = (attention.project, attention.out, mlp.inner, mlp.outer)
    as_given = all(each in narrowed and each.__dict__.get("forward") is narrowed[each] for each in (*maps, mlp))
    plain = all(type(each.weight) is nn.Parameter and each.weight.dtype == torch.float32 for each in maps)
    return as_given and plain and all(each.weight.device == x.device for each in maps)


def _is_mlp(mlp: MLP) -> bool:
    """Whether nothing is known of a feed-forward but what is honoured; its forward is the one in 8 bits."""
    unknown = MLP.depends_on.undeclared(mlp) is not None or watched(mlp)
    return not unknown and programmed_name(mlp.activation) is not None


def _make_of(first: Any, second: Any) -> tuple[Any, ...]:
    maps = (first.mixer.project, first.mixer.out, second.mixer.inner, second.mixer.outer)
    shapes = tuple((each.weight.shape, each.bias is None) for each in maps)
    shifts = tuple(numbers_of(step.norm)[1] is None for step in (first, second))
    return shapes, shifts, first.mixer.biases, first.mixer.value_size


def _steps_of(block: nn.Module) -> Steps:
    first, second = block.children()
    return first, second
