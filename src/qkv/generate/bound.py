"""What was made ready for decoding, tried beside the parts it was made of: some tokens, with a cache and padding.

Blocks with windows are tried once more, behind as many slots as their windows are wide. Those are not read, which would
take as long as reading a text: the cache is given keys and values for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qkv.generate.residual_steps import StepsOfStack, steps_of_stack
from qkv.parts.agreement import ROWS, disagreement, distinct, tokens_like
from qkv.parts.attention.attention import CrossAttention, MultiHead
from qkv.parts.attention.cache import PreallocatedCache
from qkv.parts.attention.visibility import NotPadding, Tokens
from qkv.parts.context import Context
from qkv.parts.cpu_maps import PackedJoined, PackedModule
from qkv.parts.past_windows import BEYOND, fill_past, row_past, spans_of
from qkv.parts.position import positions_in_documents
from qkv.parts.stack import Stack

READ, STEPS, SOURCES = 3, 2, 4  # tokens read at once, then one at a time, of a memory of so many
MOST = 1 << 30  # bytes of keys and values of one block; who has a window that takes more is not relied on
LONGEST = 4096  # tokens of a row that is read as a whole, likewise


@torch.no_grad()
def disagreement_of_stacks(own: Stack, ready: nn.Module) -> str | None:
    """What a ready stack does otherwise than its own parts, each distinct block tried; None: nothing."""
    whole = ready.whole if isinstance(ready, StepsOfStack) else ready
    if not isinstance(whole, Stack):
        return None
    changed = [number for number in own.order if _kinds(whole.blocks[number]) != _kinds(own.blocks[number])]
    if not changed:
        return None
    numbers = [changed[each] for each in distinct(own.blocks[number] for number in changed)]
    learning = [each for each in own.modules() if each.training]
    for each in learning:
        each.training = False
    try:
        trials = [(numbers, frozenset[int]()), *(([each], spans_of(own.blocks[each])) for each in numbers)]
        found = (_disagreement_of(own, whole, some, spans, ready) for some, spans in trials if spans or some is numbers)
        return next((why for why in found if why is not None), None)
    finally:
        for each in learning:
            each.training = True


def _disagreement_of(
    own: Stack, whole: Stack, numbers: list[int], spans: frozenset[int], ready: nn.Module
) -> str | None:
    """Of some blocks, behind their windows if there are any."""
    few = Stack([own.blocks[number] for number in numbers], own.norm, own.bias)
    fast: nn.Module = Stack([whole.blocks[number] for number in numbers], whole.norm, whole.bias).eval()
    if isinstance(ready, StepsOfStack):
        fast = steps_of_stack(fast) or fast
    return _disagreement(few, fast.eval(), spans)


def _kinds(block: nn.Module) -> list[type]:
    return [type(each) for each in block.modules() if not isinstance(each, nn.Dropout | nn.Identity)]


class _Trial(NamedTuple):
    """Tokens that a stack is given, and what stands beside them."""

    tokens: list[tuple[int, Tensor]]  # from which slot on, and the stream there
    documents: Tensor | None  # of the slots that are read
    memory: Tensor | None
    cached: bool
    spans: frozenset[int]  # of windows, behind which the steps are: what lies between is filled


def _disagreement(own: Stack, fast: nn.Module, spans: frozenset[int]) -> str | None:
    weight = next(each for each in own.parameters() if each.is_floating_point())
    width, rows = _width(own), 1 if spans else ROWS
    memories = [each.project for each in own.modules() if isinstance(each, CrossAttention)]
    memory = None if not memories else tokens_like(weight, rows, SOURCES, _inputs(memories[0]), seed=1)
    attentions = [each for each in own.modules() if isinstance(each, MultiHead)]
    keeps, widest = all(each.keeps for each in attentions), max(spans, default=0)
    kept = sum(each.key_size + each.value_size for each in attentions) * weight.element_size()
    if (widest * kept > MOST) if keeps else (2 * widest > LONGEST):
        return f"its window of {widest} tokens is wider than is tried"
    read, behind = READ, READ
    if keeps and spans:
        behind = READ + widest + BEYOND
    elif spans:
        read = 2 * widest
    given = tokens_like(weight, rows, read, width, seed=2)
    if read > READ:
        given = row_past(given, read, read, widest)
    steps = range(behind, behind + STEPS) if keeps else ()  # whole rows are read anew without a cache
    tokens = [(0, given), *((step, tokens_like(weight, rows, 1, width, seed=2 + step)) for step in steps)]
    padded = torch.ones(rows, read, dtype=torch.long)
    padded[0, 0] = 0
    rounded = any(isinstance(each, PackedModule) for each in own.modules())
    for documents in (None, padded):
        trial = _Trial(tokens, documents, memory, keeps, spans)
        for (_, x), plain, other in zip(
            tokens, _answers(partial(_plainly, own), trial), _answers(fast, trial), strict=True
        ):
            if (why := disagreement(other, plain, x, rounded=rounded)) is not None:
                return f"it gave other answers ({why})"
    return None


def _answers(stack: Callable[[Tensor, Context], Tensor], trial: _Trial) -> list[Tensor]:
    cache = PreallocatedCache(trial.tokens[-1][0] + 1) if trial.cached else None
    answers = []
    for first, x in trial.tokens:
        if cache is not None and first > cache.length:
            between = Tokens(first - cache.length, cache.length)
            for _, rooms in cache.rooms():
                fill_past(rooms, trial.spans, cache.length, first)
            if trial.documents is not None:
                between = replace(between, documents=torch.ones(len(x), between.size, dtype=torch.long))
            cache.advance(between)
        ctx = _context(trial.documents, first, x.shape[1], trial.memory, cache)
        answers.append(stack(x, ctx))
        if cache is not None:
            cache.advance(ctx.tokens)
    return answers


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
        new = documents if first == 0 else torch.ones(len(documents), 1, dtype=torch.long)
        positions = positions_in_documents(documents) if first == 0 else first - (documents == 0).sum(1, keepdim=True)
        ctx = replace(ctx, tokens=Tokens(size, first, new), positions=positions, visibility=NotPadding())
    if memory is None:
        return ctx
    hidden = torch.ones(len(memory), SOURCES, dtype=torch.long)
    hidden[-1, -1] = 0
    told = Tokens(SOURCES, documents=None if documents is None else hidden)
    return replace(ctx, memory=memory, memory_tokens=told, visibility=NotPadding())
