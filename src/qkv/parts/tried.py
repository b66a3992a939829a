"""Blocks in place (`in_place.py`), tried beside the blocks themselves before they are relied on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from qkv.parts.agreement import ROWS, disagreement, distinct, say_refused, tokens_like
from qkv.parts.attention.attention import MultiHead
from qkv.parts.attention.in_line import InLine
from qkv.parts.attention.visibility import Everything, NotPadding, Rule, SameDocument, Tokens, Window
from qkv.parts.context import Context
from qkv.parts.cpu_maps import PackedModule
from qkv.parts.in_place import Plan, in_place, plan_of
from qkv.parts.spec import NotUnderstood

FEWEST, MOST = 9, 520  # tokens of a row; more than the fewest where a window is to be passed


def tried_plan(blocks: Sequence[nn.Module], norm: nn.Module | None, x: Tensor, ctx: Context) -> Plan | None:
    """`plan_of` these blocks, if it gave what they give; tried once for each kind of rows."""
    plan = plan_of(blocks, x)
    if plan is None:
        return None
    rule = ctx.visibility
    kind = type(ctx.tokens), type(rule), ctx.tokens.documents is None, ctx.bias is None, ctx.wanted is None
    if kind not in plan.tried:
        why = _disagreement(plan, blocks, norm, x, ctx)
        plan.tried[kind] = why is None
        if why is not None:
            say_refused("A pass over blocks in place", why)
    return plan if plan.tried[kind] else None


def _disagreement(
    plan: Plan, blocks: Sequence[nn.Module], norm: nn.Module | None, x: Tensor, ctx: Context
) -> str | None:
    try:
        numbers = distinct(blocks)
    except NotUnderstood:
        numbers = [*range(len(blocks))]
    first = [0]
    for block in blocks:
        first.append(first[-1] + len(block._modules))
    few = plan._replace(steps=[each for number in numbers for each in plan.steps[first[number] : first[number + 1]]])
    own = [blocks[number] for number in numbers]
    small = small_like(ctx, own, x)
    if small is None:
        return None
    slots = small.tokens.size
    read = tokens_like(x, 1 if isinstance(small.tokens, InLine) else ROWS, slots, x.shape[-1])
    wanted = None if ctx.wanted is None else min(ctx.wanted, slots)
    fast = in_place(few, norm, read, small, wanted)
    plain = read
    for block in own:
        plain = block(plain, small)
    plain = plain if norm is None else norm(plain, small)
    before = read[:, : fast.shape[1]]
    rounded = any(isinstance(each, PackedModule) for block in own for each in block.modules())
    return disagreement(fast, plain[:, : fast.shape[1]], before, rounded=rounded)


def _attentions(block: nn.Module) -> list[MultiHead]:
    return [each for each in block.modules() if isinstance(each, MultiHead)]


def _span(rule: Rule) -> int:
    """Over how many tokens the widest window of a rule looks."""
    inner: list[Any] = [getattr(rule, each.name) for each in fields(rule)] if is_dataclass(rule) else []
    own = rule.size * rule.step if isinstance(rule, Window) else 0
    return max([own, *(_span(each) for each in inner if isinstance(each, Rule))])


def small_like(ctx: Context, blocks: Sequence[nn.Module], x: Tensor) -> Context | None:
    """A small context of the same kind, of rows that pass the windows of these blocks; None: nobody can make one."""
    attentions = [each for block in blocks for each in _attentions(block)]
    size = min(MOST, max([FEWEST, *(_span(each.visibility) + 3 for each in attentions)]))
    small = _rows_like(ctx, size, x.device)
    if small is None:
        return None
    slots = small.tokens.size
    if ctx.position_vectors is not None:
        small = replace(small, position_vectors=tokens_like(x, slots, x.shape[-1], seed=1))
    if ctx.bias is not None:
        heads = max((each.heads for each in attentions), default=1)
        small = replace(small, bias=tokens_like(ctx.bias, 1, heads, slots, slots, seed=2))
    return small


def _rows_like(ctx: Context, size: int, device: torch.device) -> Context | None:
    """A small context of the same kind; None: of a kind that nobody can make."""
    if isinstance(ctx.tokens, InLine):
        line = InLine.of([size, 3, 1], device)
        return Context(tokens=line, visibility=SameDocument(), positions=line.positions)
    if type(ctx.tokens) is not Tokens:
        return None
    documents = None
    if ctx.tokens.documents is not None:
        documents = torch.ones(ROWS, size, dtype=torch.long, device=device)
        documents[0, -2:] = 0
    known = isinstance(ctx.visibility, Everything | NotPadding | SameDocument)
    return Context(tokens=Tokens(size, documents=documents), visibility=ctx.visibility if known else NotPadding())
