"""What was made ready for decoding, tried beside the parts it was made of: some tokens, with a cache and padding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from qkv.generate.residual_steps import StepsOfStack, steps_of_stack
from qkv.parts.agreement import ROWS, disagreement, distinct, tokens_like
from qkv.parts.attention.attention import CrossAttention, MultiHead
from qkv.parts.attention.cache import PreallocatedCache
from qkv.parts.attention.visibility import NotPadding, Tokens
from qkv.parts.context import Context
from qkv.parts.cpu_maps import PackedJoined, PackedModule
from qkv.parts.position import positions_in_documents
from qkv.parts.spec import NotUnderstood
from qkv.parts.stack import Stack

READ, STEPS, SOURCES = 3, 2, 4  # tokens read at once, then one at a time, of a memory of so many


@torch.no_grad()
def disagreement_of_stacks(own: Stack, ready: nn.Module) -> str | None:
    """How far a ready stack is from its own parts, each distinct block once; None: they agree, or nothing was made."""
    whole = ready.whole if isinstance(ready, StepsOfStack) else ready
    if not isinstance(whole, Stack):
        return None
    changed = [number for number in own.order if _kinds(whole.blocks[number]) != _kinds(own.blocks[number])]
    if not changed:
        return None
    try:
        numbers = [changed[each] for each in distinct(own.blocks[number] for number in changed)]
    except NotUnderstood:  # of which nothing tells whether it is like another
        numbers = changed
    few = Stack([own.blocks[number] for number in numbers], own.norm, own.bias, own.dropout.p)
    fast: nn.Module = Stack([whole.blocks[number] for number in numbers], whole.norm, whole.bias)
    if isinstance(ready, StepsOfStack):
        fast = steps_of_stack(fast) or fast
    rounded = any(isinstance(each, PackedModule) for each in few.modules())
    learning = [each for each in few.modules() if each.training]
    for each in (*few.modules(), *fast.modules()):
        each.training = False
    try:
        return _compared(few, fast, rounded)
    finally:
        for each in learning:
            each.training = True


def _kinds(block: nn.Module) -> list[type]:
    return [type(each) for each in block.modules() if not isinstance(each, nn.Dropout | nn.Identity)]


def _compared(own: Stack, fast: nn.Module, rounded: bool) -> str | None:
    weight = next(each for each in own.parameters() if each.is_floating_point())
    width = _width(own)
    memories = [each.project for each in own.modules() if isinstance(each, CrossAttention)]
    memory = None if not memories else tokens_like(weight, ROWS, SOURCES, _inputs(memories[0]), seed=1)
    padded = torch.ones(ROWS, READ, dtype=torch.long)
    padded[0, 0] = 0
    keeps = all(each.keeps for each in own.modules() if isinstance(each, MultiHead))
    steps = [(READ + step, 1) for step in range(STEPS)] if keeps else []  # whole rows are read anew without a cache
    for documents in (None, padded):
        caches = [PreallocatedCache(READ + STEPS) if keeps else None for _ in range(2)]
        for first, size in ((0, READ), *steps):
            x = tokens_like(weight, ROWS, size, width, seed=2 + first)
            answers = []
            for stack, cache in zip((own, fast), caches, strict=True):
                ctx = _context(documents, first, size, memory, cache)
                answers.append(_plainly(stack, x, ctx) if stack is own else stack(x, ctx))
                if cache is not None:
                    cache.advance(ctx.tokens)
            if (why := disagreement(answers[1], answers[0], x, rounded=rounded)) is not None:
                return why
    return None


def _width(own: Stack) -> int:
    """Of the stream: as many numbers as a norm of a step has, or as the last map of a mixer gives."""
    for step in own.blocks[0].children():
        for name, each in step.named_modules():
            if name == "norm":
                return len(each.get_parameter("weight"))
            if isinstance(each, nn.Linear) and name.endswith(("out", "outer")):
                return each.out_features
    raise AssertionError("A block has neither a norm nor a map.")


def _inputs(project: nn.Module) -> int:
    """Of a map, packed or not."""
    packed: Any = project.together if isinstance(project, PackedJoined) else project
    width: int = packed.width
    return width


def _plainly(own: Stack, x: Tensor, ctx: Context) -> Tensor:
    """By the parts alone, one after the other."""
    ctx = own.with_bias(ctx)
    for block in own.blocks:
        x = block(x, ctx)
    return x if own.norm is None else own.norm(x, ctx)


def _context(
    documents: Tensor | None, first: int, size: int, memory: Tensor | None, cache: PreallocatedCache | None
) -> Context:
    ctx = Context(tokens=Tokens(size, first), cache=cache)
    if documents is not None:
        new = documents if first == 0 else torch.ones(ROWS, 1, dtype=torch.long)
        positions = positions_in_documents(documents) if first == 0 else first - (documents == 0).sum(1, keepdim=True)
        ctx = replace(ctx, tokens=Tokens(size, first, new), positions=positions, visibility=NotPadding())
    if memory is None:
        return ctx
    hidden = torch.ones(ROWS, SOURCES, dtype=torch.long)
    hidden[1, -1] = 0
    told = Tokens(SOURCES, documents=None if documents is None else hidden)
    return replace(ctx, memory=memory, memory_tokens=told, visibility=NotPadding())
