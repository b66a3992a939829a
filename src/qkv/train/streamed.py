"""A stack whose blocks leave what they add to the stream, and the bias of it, to the next norm.

A module at a time, the sum at the end of a block is a pass over memory of its own, for the next block is other code;
so are, on the way back, the narrow copy of the gradient that its last product reads, and the sum over rows that its
bias learns from. Here the stream goes from block to block with what is still to be added, and `sum_norm` does all of
that in the two passes that a norm takes anyway.

Of the last block only those slots are computed that the head reads, where the context says which. Nothing of the others
is in the loss, so their gradients are zeros either way.

Parts are looked at in each pass, because they may have changed: with one that is not known, that drops out, or that
someone watches, the stack runs as it is.

Shapes: b rows, s slots, d width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from qkv.parts import activated_map
from qkv.parts.agreement import ROWS, disagreement, distinct, say_refused, tokens_like
from qkv.parts.attention.attention import BY_CONTENT, Attention
from qkv.parts.attention.visibility import Tokens
from qkv.parts.block import Block
from qkv.parts.context import Context
from qkv.parts.feedforward import MLP, GatedMLP, programmed_name
from qkv.parts.in_place import ANSWERS
from qkv.parts.learned_map import learned_map
from qkv.parts.linear import JoinedLinear
from qkv.parts.modes import answering
from qkv.parts.norm import LayerNorm, RMSNorm
from qkv.parts.past_windows import passed, spans_of
from qkv.parts.precision import NarrowCopies, narrow_type
from qkv.parts.programs import is_counted, is_itself, is_plain_parameter, runs_or_counts
from qkv.parts.residual import PreNorm
from qkv.parts.stack import Stack
from qkv.parts.sum_norm import norm_of_sum, sum_norm
from qkv.parts.tried import FEWEST, kind_of, looks, row_past_windows, small_like

NARROW = (torch.bfloat16, torch.float16)
WIDEST = 4096  # stream, of which a program holds a row, and what it sums
ENOUGH = 1 << 22  # numbers of a stream; with fewer, launching programs takes the host longer than they save

Forward = Callable[[Tensor, Context], Tensor]
Inside = Callable[..., tuple[Tensor, Tensor]]


class Unbiased(NamedTuple):
    """A linear map without its bias, which is added later."""

    weight: Tensor
    bias: None = None


def inside(block: Block, x: Tensor, ctx: Context, read: Tensor, wanted: int | None = None) -> tuple[Tensor, Tensor]:
    """The block, given the stream and its first norm, up to its last product: the stream, and what is to be added.

    Where so many slots from the first on are `wanted`, both for these alone.
    """
    added = bias = None
    for step in _steps_of(block):
        if added is not None:
            x, read = sum_norm(x, added, bias, step.norm, read.dtype)
            added = _unbiased(step.mixer, read, ctx)
        elif wanted is None:
            added = _unbiased(step.mixer, read, ctx)
        else:
            hidden = step.mixer.hidden_of_first(read, ctx, wanted)  # [b wanted n]
            x, added = x[:, :wanted], learned_map(hidden, step.mixer.out.weight)
        bias = _last_map(step.mixer).bias
    assert added is not None
    return x, added


@contextmanager
def streamed_stacks(model: nn.Module, made: Callable[[Inside], Inside] | None = None) -> Iterator[None]:
    """Inside, stacks of blocks run so, where they can; `made`: what is to be made of `inside` of a block first."""
    stacks = [module for module in model.modules() if type(module) is Stack and _holds_blocks(module)]
    for stack in stacks:
        ways: dict[nn.Module, Inside] = {block: MethodType(inside, block) for block in stack.blocks}
        if made is not None:
            ways = {block: made(way) for block, way in ways.items()}
        stack.forward = streamed(stack, ways)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        for stack in stacks:
            del stack.forward


def _holds_blocks(stack: Stack) -> bool:
    kinds = {type(each) for each in stack.blocks}
    return kinds == {Block} and "forward" not in stack.__dict__


def streamed(stack: Stack, ways: dict[nn.Module, Inside]) -> Forward:
    """The way forward of a stack, given `inside` of each of its blocks, which may be compiled."""
    own = {block: block.__dict__.get("forward") for block in stack.blocks}  # who replaces it is not passed by
    copies = NarrowCopies()
    tried: dict[Any, bool] = {}

    def forward(x: Tensor, ctx: Context) -> Tensor:
        as_found = all(block.__dict__.get("forward") is own.get(block, block) for block in stack.blocks)
        if not as_found or not _learns_narrow(x, ctx):
            return Stack.forward(stack, x, ctx)
        in_eight_bits = stack.__dict__.get("in_eight_bits")  # by `float8_products`
        if in_eight_bits is not None and (found := in_eight_bits(x, ctx)) is not None:
            return cast(Tensor, found)
        if not _is_known(stack, x):
            return Stack.forward(stack, x, ctx)
        ctx = stack.with_bias(ctx)
        kind = *kind_of(ctx, spans_of(stack.blocks)), narrow_type(x)
        if kind not in tried:
            tried[kind] = _agrees(stack, x, ctx)
        if not tried[kind]:
            return Stack.forward(stack, x, ctx)
        blocks = [stack.blocks[number] for number in stack.order]
        with copies.at_hand(narrow_type(x)):
            return stack.dropout(_passed(blocks, stack.norm, ways, x, ctx, watched=bool(stack._forward_hooks)))

    return forward


def _passed(
    blocks: list[Any], norm: nn.Module | None, ways: dict[nn.Module, Inside], x: Tensor, ctx: Context, *, watched: bool
) -> Tensor:
    """What blocks and the norm behind them make of a stream, each sum left to the norm that reads it."""
    added = bias = None
    for number, block in enumerate(blocks):
        steps = _steps_of(block)
        x, read = sum_norm(x, added, bias, steps[0].norm, narrow_type(x))
        few = number == len(blocks) - 1 and not watched and _reads_few(steps, ctx)
        x, added = ways[block](x, ctx, read, ctx.wanted if few else None)
        bias = _last_map(steps[-1].mixer).bias
    assert added is not None
    if norm is None:
        return x + added if bias is None else x + added + bias
    return norm_of_sum(x, added, bias, cast(LayerNorm, norm), x.dtype)


def _agrees(stack: Stack, x: Tensor, ctx: Context) -> bool:
    """Whether each distinct block gives what its parts give, some tokens and their gradients, without dropout.

    Each step with a window that such rows pass does so once more, alone, on a row as long.
    """
    if is_counted(x) or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        return True  # nothing can be compared
    own: list[Any] = [stack.blocks[number] for number in stack.order]
    few = [own[number] for number in distinct(own)]
    small = small_like(ctx, few, x)
    if small is None:
        return True
    with answering(stack):
        read = tokens_like(x, ROWS, small.tokens.size, x.shape[-1])
        why = _disagreement(few, stack.norm, read, small)
        for step in (step for block in few for step in _steps_of(block) if passed(looks(step, ctx), ctx.tokens.end)):
            given = row_past_windows(ctx, step, x)
            if why is None and given is not None:
                read, small, size = given
                why = _disagreement([Block(step=step)], None, read, small, size)
    if why is not None:
        say_refused("Training with sums left to norms", why)
    return why is None


def _disagreement(
    few: list[Any], norm: nn.Module | None, read: Tensor, small: Context, end: int | None = None
) -> str | None:
    """How far answers and gradients are apart; where a row has an `end`, those of the last slots before it too."""
    read = read.requires_grad_()
    ways: dict[nn.Module, Inside] = {block: MethodType(inside, block) for block in few}
    fast = _passed(few, norm, ways, read, small, watched=True)
    plain = read
    for block in few:
        plain = Block.forward(block, plain, small)  # its parts, whoever compiled it
    plain = plain if norm is None else norm(plain, small)
    slope = tokens_like(fast, *fast.shape, seed=3)
    of_fast, of_plain = (torch.autograd.grad((each * slope).sum(), read)[0] for each in (fast, plain))
    before = read.detach() if end is not None else None
    rounded = narrow_type(read) != torch.float32
    for slots in (slice(None), *(() if end is None else (slice(max(0, end - FEWEST), end),))):
        told = fast.detach()[:, slots], plain.detach()[:, slots], None if before is None else before[:, slots]
        why = disagreement(*told, rounded=rounded) or disagreement(
            of_fast[:, slots], of_plain[:, slots], rounded=rounded
        )
        if why is not None:
            return why
    return None


def _learns_narrow(x: Tensor, ctx: Context) -> bool:
    """Whether a pass is for gradients, of a wide stream whose products are narrow, and there is enough to do."""
    return (
        torch.is_grad_enabled()
        and x.requires_grad
        and runs_or_counts(x)
        and x.dtype == torch.float32
        and narrow_type(x) in NARROW
        and x.shape[-1] <= WIDEST
        and x.numel() >= ENOUGH
        and ctx.cache is None
        and ctx.position_vectors is None  # which are added to what a norm gives, before it is made narrow
        and not _has_any_global_hook()
    )


def _is_known(stack: Stack, x: Tensor) -> bool:
    """Whether nobody watches any part, and all that is passed by does what its class says."""
    blocks = list(stack.blocks)
    return (
        len(blocks) > 0
        and (stack.norm is None or is_plain_norm(stack.norm, x))
        and all(type(block) is Block and len(block._modules) > 0 for block in blocks)
        and not any(watched(module) for block in blocks for module in block.modules())
        and all(_step_is_known(step, x) for block in blocks for step in block.children())
    )


def _step_is_known(step: Any, x: Tensor) -> bool:
    if type(step) is not PreNorm or not all(map(is_itself, (step, step.mixer, step.dropout, step.path))):
        return False
    if any(ANSWERS.of(type(each)).refusal(each) for each in (step, step.dropout, step.path)):
        return False
    if step.training and (step.dropout.p > 0 or step.path.rate > 0):
        return False
    # All begin with a product, for which autocast makes narrow what they are given.
    if type(step.mixer) not in (Attention, MLP, GatedMLP) or ANSWERS.of(type(step.mixer)).refusal(step.mixer):
        return False
    first = _first_map(step.mixer)
    known = nn.Linear if type(step.mixer) is MLP else JoinedLinear
    as_written = type(first) is known and is_itself(first) and "together" not in first.__dict__  # by others: in 8 bits
    last = _last_map(step.mixer)
    plain = type(last) is nn.Linear and is_itself(last) and is_plain_parameter(last.weight)
    return as_written and plain and last.weight.device == x.device and is_plain_norm(step.norm, x)


def is_plain_norm(norm: nn.Module, x: Tensor) -> bool:
    if type(norm) not in (LayerNorm, RMSNorm) or not is_itself(norm) or watched(norm):
        return False
    held = [each for each in norm._parameters.values() if each is not None]
    plain = all(is_plain_parameter(each) and each.dtype == x.dtype and each.device == x.device for each in held)
    return plain and bool(held) and all(each.shape == x.shape[-1:] and each.is_contiguous() for each in held)


def watched(module: nn.Module) -> bool:
    own = module.__dict__
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(own[name] for name in hooks)


def _reads_few(steps: list[Any], ctx: Context) -> bool:
    """Whether a few slots can be asked of a block that begins with attention, without the others."""
    mixer, *others = [step.mixer for step in steps]
    if type(mixer) is not Attention or any(type(each) is Attention for each in others):
        return False
    rows = type(ctx.tokens) is Tokens and ctx.tokens.documents is None
    recorded = ctx.ledger is not None and ctx.ledger.keep
    return rows and ctx.bias is None and not recorded and BY_CONTENT.refusal(mixer) is None


def _steps_of(block: Block) -> list[Any]:
    return list(block.children())


def _first_map(mixer: Any) -> Any:
    return mixer.project if type(mixer) is Attention else mixer.inner


def _last_map(mixer: Any) -> nn.Linear:
    """The product that a mixer ends in."""
    last: nn.Linear = mixer.out if type(mixer) is Attention else mixer.outer
    return last


def _unbiased(mixer: Any, read: Tensor, ctx: Context) -> Tensor:
    """What a mixer makes of a norm, without the bias of its last product. [b s d] → [b s d]"""
    if type(mixer) is Attention:
        return learned_map(mixer.hidden(read, ctx), mixer.out.weight)
    dropping = mixer.training and mixer.dropout.p > 0
    if type(mixer) is MLP and not dropping and activated_map.fits_trained(read, mixer.inner, mixer.outer):
        name = programmed_name(mixer.activation)
        if name is not None:
            outer: Any = Unbiased(mixer.outer.weight)
            return activated_map.feed_forward(read, mixer.inner, outer, name)
    return learned_map(mixer.dropout(mixer.hidden(read)), mixer.outer.weight)
