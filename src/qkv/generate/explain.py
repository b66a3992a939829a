"""Who computes what of a model, what was not understood by the faster ways, and what runs instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from qkv.generate import fused, standing
from qkv.generate.known import STACK, STEPS
from qkv.generate.prepare import can_prepare, prepare
from qkv.generate.residual_steps import ResidualStep, StepsOfStack
from qkv.models.sequence_to_sequence import EncoderDecoder
from qkv.models.text_model import TextModel
from qkv.parts.attention.attention import BY_CONTENT, Attention
from qkv.parts.in_place import ANSWERS, plan_of
from qkv.parts.modes import answering
from qkv.parts.past_windows import spans_of
from qkv.parts.stack import Stack

LIKE = 128  # tokens of a row that ways are asked about


def explain(model: nn.Module) -> str:
    """A sentence for each way in which this model is run here, as it is now."""
    weight = next(model.parameters())
    first = f"{type(model).__name__} in {str(weight.dtype).removeprefix('torch.')} on {weight.device}."
    with answering(model), torch.no_grad():
        return "\n".join([first, *_of_rows(model), *_of_steps(model)])


def _of_rows(model: nn.Module) -> Iterator[str]:
    for name, stack in model.named_modules():
        if isinstance(stack, Stack):
            yield f"Whole rows, {name}: {_rows(stack)}"


def _rows(stack: Stack) -> str:
    blocks = [stack.blocks[number] for number in stack.order]
    why = next((why for each in blocks if (why := ANSWERS.refusal(each)) is not None), None)
    if type(stack) is not Stack or not blocks or why is not None:
        return f"its own parts, one after the other ({why or 'a ' + type(stack).__name__ + ' is not known'})."
    gain = next((each for each in blocks[0].parameters() if each.ndim == 1), None)  # of the first norm
    if gain is None:
        return "its own parts, one after the other."
    plan = plan_of(blocks, gain.new_zeros(1, LIKE, len(gain)))
    if plan is None or not (gain.is_cuda or plan.own):
        return "its own parts, one after the other: on this processor nothing is quicker."
    apart = [BY_CONTENT.refusal(each) for block in blocks for each in block.modules() if type(each) is Attention]
    named = sorted({each for each in apart if each is not None})
    left = f", attention by its own parts ({'; '.join(named)})" if named else ""
    tried = f", tried anew when rows first pass {_windows(plan.spans)}" if plan.spans else ""
    return f"blocks in place by custom kernels where there are enough tokens{left}{tried}."


def _of_steps(model: nn.Module) -> Iterator[str]:
    if not isinstance(model, TextModel | EncoderDecoder):
        return
    if isinstance(model, TextModel) and model.head_choice.kind != "language":
        return
    if next(model.parameters()).is_cuda:
        yield f"Decoding: {_recorded(model)}"
        return
    if not can_prepare(model):
        yield "Decoding: its own parts; nothing packs matrices of this type on this processor."
        return
    ready: Any = prepare(model)
    if ready is model:
        yield "Decoding: its own parts, because packed ones gave other answers, or have a window too wide to try."
        return
    for name, own in model.named_modules():
        if isinstance(own, Stack) and not name.startswith("encoder"):
            yield f"Decoding, {name}: {_steps(own, ready.get_submodule(name))}"


def _recorded(model: TextModel | EncoderDecoder) -> str:
    if (why := standing.why_not(model)) is not None:
        return f"its own parts, launched one by one ({why})"
    plan = fused.plan_of(model)
    return f"recorded steps by {'custom kernels.' if isinstance(plan, fused.Plan) else f'its own parts ({plan})'}"


def _steps(own: Stack, ready: nn.Module) -> str:
    if isinstance(ready, StepsOfStack):
        return "all steps of a token are one call of a compiled program."
    steps = [each for block in own.blocks for each in block.children()]
    done = sum(isinstance(each, ResidualStep) for each in ready.modules())
    refused = [*map(STEPS.refusal, steps), STACK.refusal(own)]
    why = "; ".join(dict.fromkeys(each for each in refused if each is not None)) or "no compiler made it"
    left = "the rest by its own parts on packed matrices"
    spans = spans_of(own)
    tried = f"; tried beside its parts behind {_windows(spans)}" if spans else ""
    return f"{done} of {len(steps)} steps by a compiled program, {left} ({why}){tried}."


def _windows(spans: frozenset[int]) -> str:
    return f"a window of {' and of '.join(map(str, sorted(spans)))} tokens"
