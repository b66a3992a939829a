"""Blocks in place (`in_place.py`), tried beside the blocks themselves before they are relied on.

All of them on a few tokens; and when rows first come that pass a window, each attention that has one on such a row.
Shorter ones cannot tell whether a window is honoured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from qkv.parts.agreement import ROWS, disagreement, distinct, say_refused, tokens_like
from qkv.parts.attention.attention import MultiHead
from qkv.parts.attention.in_line import InLine
from qkv.parts.attention.visibility import Causal, Everything, NotPadding, Rule, SameDocument, Tokens, Window
from qkv.parts.attention.whole_rows import rules_of
from qkv.parts.context import Context
from qkv.parts.cpu_maps import PackedModule
from qkv.parts.in_place import Plan, in_place, plan_of
from qkv.parts.past_windows import passed, row_past, spans, spans_of

FEWEST = 9  # tokens of a row


def tried_plan(blocks: Sequence[nn.Module], norm: nn.Module | None, x: Tensor, ctx: Context) -> Plan | None:
    """`plan_of` these blocks, if it gave what they give; tried once for each kind of rows."""
    plan = plan_of(blocks, x)
    if plan is None:
        return None
    kind = kind_of(ctx, plan.spans)
    if kind not in plan.tried:
        why = _disagreement(plan, blocks, norm, x, ctx) or _disagreement_past_windows(plan, blocks, x, ctx)
        plan.tried[kind] = why is None
        if why is not None:
            say_refused("A pass over blocks in place", why)
    return plan if plan.tried[kind] else None


def kind_of(ctx: Context, own: frozenset[int]) -> tuple[object, ...]:
    """What rows have in common that one trial is enough for; `own`: the spans of blocks."""
    rule = ctx.visibility
    far = tuple(each.kind for each in passed(own | spans(rule), ctx.tokens.end))
    told = rule if spans(rule) else type(rule)
    return type(ctx.tokens), told, ctx.tokens.documents is None, ctx.bias is None, ctx.wanted is None, far


def _disagreement(
    plan: Plan, blocks: Sequence[nn.Module], norm: nn.Module | None, x: Tensor, ctx: Context
) -> str | None:
    numbers = distinct(blocks)
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
    return disagreement(fast, plain[:, : fast.shape[1]], before, rounded=_rounds(own))


def _disagreement_past_windows(plan: Plan, blocks: Sequence[nn.Module], x: Tensor, ctx: Context) -> str | None:
    """Each distinct step that has a window which such rows pass, alone: what adds nothing to it would only hide it."""
    steps = [step for block in blocks for step in block._modules.values() if step is not None]
    far = [number for number, step in enumerate(steps) if passed(looks(step, ctx), ctx.tokens.end)]
    for number in [far[each] for each in distinct([steps[number] for number in far])]:
        step = steps[number]
        given = row_past_windows(ctx, step, x)
        if given is None:
            continue
        read, small, size = given
        fast, plain = in_place(plan._replace(steps=[plan.steps[number]]), None, read, small), step(read, small)
        for slots in (slice(None), slice(max(0, size - FEWEST), size)):
            told = (each[:, slots] for each in (fast, plain, read))
            if (why := disagreement(*told, rounded=_rounds([step]))) is not None:
                return f"on a row of {size} tokens {why}"
    return None


def _rounds(blocks: Sequence[nn.Module]) -> bool:
    return any(isinstance(each, PackedModule) for block in blocks for each in block.modules())


def looks(step: nn.Module, ctx: Context) -> frozenset[int]:
    """From how many tokens on a step hides some, which has an attention."""
    return spans_of(step) | spans(ctx.visibility) if _attentions([step]) else frozenset()


def _attentions(blocks: Sequence[nn.Module]) -> list[MultiHead]:
    return [each for block in blocks for each in block.modules() if isinstance(each, MultiHead)]


def row_past_windows(ctx: Context, step: nn.Module, x: Tensor) -> tuple[Tensor, Context, int] | None:
    """A row that passes the widest window of a step that such rows pass, and how long it is."""
    span, size = passed(looks(step, ctx), ctx.tokens.end)[-1]
    small = small_like(ctx, [step], x, size, 1)
    return None if small is None else (row_past(x, small.tokens.size, size, span), small, size)


def small_like(
    ctx: Context, blocks: Sequence[nn.Module], x: Tensor, size: int = FEWEST, rows: int = ROWS
) -> Context | None:
    """A small context of the same kind, of rows of so many tokens; None: nobody can make one."""
    small = _rows_like(ctx, size, rows, x.device)
    if small is None:
        return None
    slots = small.tokens.size
    if ctx.position_vectors is not None:
        small = replace(small, position_vectors=tokens_like(x, slots, x.shape[-1], seed=1))
    if ctx.bias is not None:
        heads = max((each.heads for each in _attentions(blocks)), default=1)
        small = replace(small, bias=tokens_like(ctx.bias, 1, heads, slots, slots, seed=2))
    return small


def _rows_like(ctx: Context, size: int, rows: int, device: torch.device) -> Context | None:
    """A small context of the same kind; None: of a kind that nobody can make."""
    if isinstance(ctx.tokens, InLine):
        line = InLine.of([size, 3, 1], device)
        rule = ctx.visibility if _is_known(ctx.visibility) else SameDocument()
        return Context(tokens=line, visibility=rule, positions=line.positions)
    if type(ctx.tokens) is not Tokens:
        return None
    documents = None
    if ctx.tokens.documents is not None:
        documents = torch.ones(rows, size, dtype=torch.long, device=device)
        documents[0, -2:] = 0
    rule = ctx.visibility if _is_known(ctx.visibility) else NotPadding()
    return Context(tokens=Tokens(size, documents=documents), visibility=rule)


def _is_known(rule: Rule) -> bool:
    return all(isinstance(each, Everything | NotPadding | SameDocument | Causal | Window) for each in rules_of(rule))
