"""What is known of a model whose steps our own programs can do: its parts by their kinds, and the weights they hold.

A model is either read to the end, or it is said what in it is not known; then its own parts do its steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from qkv.models.sequence_to_sequence import EncoderDecoder
from qkv.models.text_model import TextModel
from qkv.parts.attention.attention import Attention, CrossAttention, MultiHead
from qkv.parts.attention.visibility import Causal, Everything
from qkv.parts.block import Block
from qkv.parts.embed import Embed, TokenEmbedding
from qkv.parts.feedforward import MLP, GatedMLP, programmed_name
from qkv.parts.heads import LogitHead, TiedHead
from qkv.parts.linear import JoinedLinear
from qkv.parts.norm import LayerNorm, RMSNorm
from qkv.parts.position import Learned, RelativeBuckets, Rotary, rotate_halves, rotate_neighbours
from qkv.parts.residual import PathDropout, PreNorm
from qkv.parts.spec import Honoured, Known
from qkv.parts.stack import Stack

if TYPE_CHECKING:
    from qkv.generate.recording import Recording
    from qkv.generate.step_triton import FusedStep

TYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDEST = 8192  # inputs of a map behind a norm: a program holds a row of them


def _is_programmed(activation: Any) -> bool:
    return programmed_name(activation) is not None


_HEADS = "heads key_value_heads key_width value_width scale dropout project out"
KNOWN = Honoured(
    Known(Embed, "tokens dropout position"), Known(TokenEmbedding, "weight scale"), Known(Learned, "weight first"),
    Known(Stack, "blocks order norm dropout bias"), Known(nn.ModuleList, "children"), Known(Block, "children"),
    Known(PreNorm, "norm mixer dropout path"), Known(PathDropout, "rate"), Known(nn.Dropout, "p inplace"),
    Known(Attention, _HEADS, visibility=Causal, rotary=(NoneType, Rotary)),
    Known(Rotary, "rates", pairing=lambda pairing: pairing in (rotate_halves, rotate_neighbours)),
    Known(CrossAttention, f"{_HEADS} query", visibility=Everything),
    Known(MLP, "inner outer dropout", activation=_is_programmed),
    Known(GatedMLP, "inner outer dropout", activation=_is_programmed),
    Known(nn.Linear, "weight bias"), Known(JoinedLinear, "width outputs biases weight bias"),
    Known(LayerNorm, "weight bias eps"), Known(RMSNorm, "weight epsilon"), Known(LogitHead, "weight bias scale"),
    Known(TiedHead, "bias scale", _embedding=tuple), Known(RelativeBuckets, "buckets farthest looks_ahead weight"),
)  # fmt: skip


@dataclass(frozen=True)
class Norm:
    gain: Tensor
    shift: Tensor | None
    epsilon: float
    rms: bool
    scale: float = 1.0  # of what comes out


@dataclass(frozen=True)
class Map:
    weight: Tensor  # [outputs inputs]
    bias: Tensor | None  # of all outputs but those of the gap
    gap: tuple[int, int] = (0, 0)  # from this output to before that


@dataclass(frozen=True)
class Cross:
    """How a layer reads the memory of its source."""

    attention: CrossAttention  # whose room in the cache it is
    norm: Norm
    query: Map
    out: Map


@dataclass(frozen=True)
class Layer:
    attention: Attention  # whose room in the cache it is
    norm: Norm
    project: Map
    out: Map
    cross: Cross | None
    next_norm: Norm
    inner: Map
    outer: Map
    activation: str
    gated: bool


@dataclass(frozen=True)
class Plan:
    """A decoder, read from its parts; called with a recording, the step that serves it."""

    tokens: Tensor  # [v d]
    scale: float
    places: Tensor | None  # [positions d]
    bias: RelativeBuckets | None  # of all scores of a token with an earlier one
    layers: tuple[Layer, ...]
    norm: Norm
    head: Map

    def __call__(self, recording: Recording) -> FusedStep:
        from qkv.generate import step_cuda
        from qkv.generate.step_triton import FusedStep

        return (step_cuda.SingleStep if step_cuda.fits(self, recording.shape) else FusedStep)(self, recording)


Kind = TypeVar("Kind", bound=nn.Module)


class _Unknown(Exception):
    """A part that no program knows."""


def plan_of(model: TextModel | EncoderDecoder) -> Plan | str:
    """The plan, or why there is none."""
    try:
        plan = _read(model)
    except _Unknown as unknown:
        return str(unknown)
    if find_spec("triton") is None:
        return "Triton is not installed."
    if not plan.tokens.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return "The model is not on a GPU."
    return plan


def _read(model: TextModel | EncoderDecoder) -> Plan:
    reads = isinstance(model, EncoderDecoder)
    embed, stack = (model.target, model.decoder) if isinstance(model, EncoderDecoder) else (model.embed, model.stack)
    stack = _must_be(Stack, stack)
    _check(type(embed) is Embed, f"The embedding is a {type(embed).__name__}.")
    _check(embed.segments is None and embed.norm is None and embed.project is None, "The embedding does more.")
    places = None
    if embed.position is not None:
        learned = _must_be(Learned, embed.position)
        places = learned.weight[learned.first :].detach()
    _check(list(stack.order) == list(range(len(stack.blocks))), "Blocks do not run once each, in their order.")
    bias = None if stack.bias is None else _must_be(RelativeBuckets, stack.bias)
    layers = tuple(_layer(block, reads) for block in stack.blocks)
    _check(len(layers) > 0, "There are no blocks.")
    head: Any = model.head
    _check(type(head) in (TiedHead, LogitHead), f"The head is a {type(head).__name__}.")
    weight = embed.tokens.weight.detach()
    norm = replace(_norm(stack.norm), scale=head.scale)
    plan = Plan(weight, embed.tokens.scale, places, bias, layers, norm, _map(head))
    first = layers[0].attention
    for layer in layers:
        for each in (layer.attention, *(() if layer.cross is None else (layer.cross.attention,))):
            _check(_form(each) == _form(first), "Attentions differ in their heads.")
        _check(layer.gated == layers[0].gated and layer.activation == layers[0].activation, "Blocks differ.")
    _check(weight.shape[1] <= WIDEST and first.query_size <= WIDEST, "The stream is too wide.")
    _check(all(parameter.dtype == weight.dtype for parameter in model.parameters()), "Weights differ in precision.")
    _check(all(parameter.is_contiguous() for parameter in model.parameters()), "A weight does not lie in one piece.")
    _check(weight.dtype in TYPES, f"Weights are of {weight.dtype}.")
    for part in (embed, stack, head):
        why = KNOWN.refusal(part)
        _check(why is None, f"Custom kernels of a step do not know all of this model: {why}.")
    return plan


def _layer(block: nn.Module, reads: bool) -> Layer:
    """`reads`: with a memory between its own tokens and the feed-forward."""
    steps: list[Any] = list(_must_be(Block, block).children())
    wanted = 3 if reads else 2
    known = len(steps) == wanted and all(type(step) is PreNorm for step in steps)
    _check(known, f"A block is not {wanted} steps behind norms.")
    attention, feed_forward = _must_be(Attention, steps[0].mixer), steps[-1].mixer
    _check(attention.visibility == Causal(), f"An attention sees {attention.visibility}.")
    _check_heads(attention)
    if attention.rotary is not None:
        turned = attention.rotary.pairing in (rotate_halves, rotate_neighbours)
        _check(type(attention.rotary) is Rotary and turned, "Positions turn heads in another way.")
    gated = type(feed_forward) is GatedMLP
    _check(gated or type(feed_forward) is MLP, f"There is a {type(feed_forward).__name__}.")
    return Layer(
        attention,
        _norm(steps[0].norm),
        _map(attention.project),
        _map(attention.out),
        _cross(steps[1]) if reads else None,
        _norm(steps[-1].norm),
        _map(feed_forward.inner),
        _map(feed_forward.outer),
        _activation(feed_forward.activation),
        gated,
    )


def _cross(step: Any) -> Cross:
    attention = _must_be(CrossAttention, step.mixer)
    _check(attention.visibility == Everything(), f"An attention to the memory sees {attention.visibility}.")
    _check_heads(attention)
    return Cross(attention, _norm(step.norm), _map(attention.query), _map(attention.out))


def _check_heads(attention: MultiHead) -> None:
    _check(attention.kernel is None, "An attention has a kernel of its own.")
    width = attention.key_width
    _check(width == attention.value_width, "Keys and values differ in width.")
    _check(width & (width - 1) == 0 and 16 <= width <= 256, f"Heads are {width} wide.")


def _form(attention: MultiHead) -> tuple[int, int, int, float | None]:
    return attention.heads, attention.key_value_heads, attention.key_width, attention.scale


def _norm(norm: nn.Module | None) -> Norm:
    if type(norm) is LayerNorm:
        return Norm(norm.weight.detach(), None if norm.bias is None else norm.bias.detach(), norm.eps, rms=False)
    if type(norm) is RMSNorm:
        return Norm(norm.weight.detach(), None, norm.epsilon, rms=True)
    raise _Unknown(f"A norm is a {type(norm).__name__}.")


def _map(linear: Any) -> Map:
    _check(type(linear) in (nn.Linear, JoinedLinear, TiedHead, LogitHead), f"A map is a {type(linear).__name__}.")
    weight, bias = linear.weight.detach(), linear.bias
    if bias is None:
        return Map(weight, None)
    gap = _gap(linear) if type(linear) is JoinedLinear else (0, 0)
    return Map(weight, bias.detach(), gap)


def _gap(joined: JoinedLinear) -> tuple[int, int]:
    """The outputs that have no bias, such as keys, which none would change."""
    first, found = 0, []
    for name, rows in joined.outputs.items():
        if name not in joined.biases:
            found.append((first, first + rows))
        first += rows
    _check(len(found) <= 1, "Several of the joined maps have no bias.")
    return found[0] if found else (0, 0)


def _activation(function: Callable[[Tensor], Tensor]) -> str:
    name = programmed_name(function)
    if name is None:
        raise _Unknown("The activation is another one.")
    return name


def _must_be(kind: type[Kind], part: object) -> Kind:
    """A part of that very kind: a descendant may compute something else."""
    if type(part) is not kind:
        raise _Unknown(f"There is a {type(part).__name__} where a {kind.__name__} is known.")
    return part


def _check(known: bool, why_not: str) -> None:
    if not known:
        raise _Unknown(why_not)
