"""Blocks that are only asked for an answer, with as few passes over memory as there can be.

The last product of each mixer adds into the stream where it lies. Its bias is not added there: it waits for the next
norm, which reads the stream anyway and knows all that is waiting. So a residual sum costs no pass of its own, and is
rounded once where it is otherwise rounded twice. Where norms come behind their mixers, the product may even norm what
it has added, so that nothing passes over the stream but products; what is normed is then not rounded before at all.
On a CPU whole steps are one call of our own program, as many as follow each other; of a step that it does not know,
such a product, its bias, the sum and whichever norm comes next are. For whole steps matrices are packed when they are
first asked for, and kept (`cpu_panels.py`), if they are not too large.

Parts are read anew at each call, because they may have changed: with any that is not known, or that someone watches,
blocks run as they are.

Shapes: b rows, s slots, t = b·s tokens, d width, n inputs of a mixer's last product.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeGuard
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.parts.activated_map import add_map, add_normed_map, fits_normed
from qkv.parts.attention.attention import BY_CONTENT, Attention
from qkv.parts.attention.in_line import InLine
from qkv.parts.attention.kernels.short_cpu import attention_step, suits_stream
from qkv.parts.attention.visibility import Tokens
from qkv.parts.block import Block
from qkv.parts.context import Context
from qkv.parts.cpu_maps import STREAMS, PackedModule, is_own, own_map, packed_map, without_asking
from qkv.parts.cpu_panels import kept_map
from qkv.parts.cpu_steps import (
    ACTIVATIONS,
    MULTIPLE,
    Norms,
    OneStep,
    PackedMap,
    RowNorm,
    add_rows,
    do_steps,
    feed_forward_step,
    takes_many,
)
from qkv.parts.feedforward import MLP, GatedMLP, programmed_name
from qkv.parts.linear import JoinedLinear
from qkv.parts.norm import LayerNorm, RMSNorm, numbers_of
from qkv.parts.past_windows import spans_of
from qkv.parts.precision import widened
from qkv.parts.product import Norm
from qkv.parts.programs import is_itself, runs_our_own, unwatched
from qkv.parts.residual import PathDropout, PostNorm, PreNorm
from qkv.parts.spec import Honoured, Known, Unchanged, anything

NARROW = (torch.bfloat16, torch.float16)
WIDEST = 8192  # stream, of which a program holds a row
ENOUGH = 1 << 20  # numbers of a stream; with fewer a GPU waits for the host, who saves nothing by programs
ENOUGH_FOR_A_CPU = 1 << 16
MOST_KEPT = 1 << 31  # bytes of matrices that are kept in panels too: with larger ones memory is short, not time


class Step(NamedTuple):
    mixer: Attention | MLP | GatedMLP
    norm: LayerNorm | RMSNorm  # before it, or after it
    first: nn.Module  # the mixer's first product, of any kind
    last: Any  # its last: an nn.Linear, or on a CPU a PackedModule


# What passes a stream in place: what mixers make of it is their own, but for the product that they end in.
_MIXERS = {"activation": anything, "inner": anything}
_SCORES = dict.fromkeys(("project", "visibility", "kernel", "rotary", "query_norm", "key_norm"), anything)
_HEADS = "heads key_value_heads key_width value_width scale dropout project out"
ANSWERS = Honoured(
    Known(Block, "children"),
    Known(PreNorm, "norm mixer dropout path"),
    Known(PostNorm, "norm mixer dropout"),
    Known(PathDropout, "rate"),
    Known(nn.Dropout, "p inplace"),
    Known(LayerNorm, "weight bias eps"),
    Known(RMSNorm, "weight epsilon"),
    Known(Attention, _HEADS, **_SCORES),
    Known(MLP, "outer dropout", **_MIXERS),
    Known(GatedMLP, "outer dropout", **_MIXERS),
    Known(nn.Linear, "weight bias"),
    Known(JoinedLinear, "width outputs biases weight bias"),
)


class Plan(NamedTuple):
    steps: list[Step]
    before: bool  # whether norms come before their mixers
    own: bool  # whether our own program for CPUs does what comes behind the mixers
    keeps: bool  # whether it may keep matrices in panels of its own
    spans: frozenset[int]  # from how many tokens on a window of one of the blocks hides some
    tried: dict[Any, bool]  # by what stands beside the stream: whether it gave what the blocks give


class _Seen(NamedTuple):
    """A plan, and all that it was made of."""

    unchanged: Unchanged
    parameters: list[nn.Parameter]
    signature: list[Any]
    plan: Plan | None


_seen: WeakKeyDictionary[nn.Module, dict[Any, _Seen]] = WeakKeyDictionary()  # by the first block


def only_answers(x: Tensor, ctx: Context) -> bool:
    """Whether nothing but its answer is asked of a pass."""
    return (
        ctx.cache is None
        and not torch.is_grad_enabled()
        and unwatched(x)
        and (ctx.ledger is None or not ctx.ledger.keep)
        and not torch.is_autocast_enabled(x.device.type)
        and not torch.nn.modules.module._has_any_global_hook()
    )


def pays(x: Tensor) -> bool:
    """Whether a stream may be better passed on in place: on a GPU in half precision, or on a CPU, if it is long."""
    if x.device.type == "cpu":
        return x.dtype in STREAMS and x.numel() >= ENOUGH_FOR_A_CPU
    return runs_our_own(x) and x.dtype in NARROW and x.shape[-1] <= WIDEST and x.numel() >= ENOUGH


def is_packed(block: nn.Module) -> bool:
    """Whether some maps of a block are for our own program alone, which then does all it can, few rows too."""
    return any(isinstance(each, PackedModule) and each.map is not None for each in block.modules())


@without_asking()  # tensors are asked for their kinds a thousand times
def plan_of(blocks: Iterable[nn.Module], x: Tensor) -> Plan | None:
    """The steps of blocks that a stream like x may pass in place; None: there is one that is not known.

    Made anew as soon as anything about a part has changed.
    """
    blocks = list(blocks)
    if not blocks:
        return _new_plan(blocks, x)
    key = (*map(id, blocks), x.dtype, x.device, x.shape[-1])
    plans = _seen.setdefault(blocks[0], {})
    found = plans.get(key)
    if found is None or not found.unchanged.holds() or _signature(found.parameters) != found.signature:
        parameters = [each for block in blocks for each in block.parameters()]
        found = _Seen(Unchanged(blocks), parameters, _signature(parameters), _new_plan(blocks, x))
        plans.clear()  # a model answers in one precision at a time
        plans[key] = found
    return found.plan


def _signature(parameters: list[nn.Parameter]) -> list[Any]:
    """What tells whether tensors were moved or replaced within their parameters."""
    return [(each.data_ptr(), each.dtype) for each in parameters]


def _new_plan(blocks: list[nn.Module], x: Tensor) -> Plan | None:
    steps: list[Step] = []
    wirings = set()
    for block in blocks:
        if not _is(Block, block):
            return None
        for wired in block._modules.values():
            step = _step_of(wired, x)
            if step is None:
                return None
            steps.append(step)
            wirings.add(type(wired))
    if len(wirings) != 1:
        return None
    served = x.device.type == "cpu" and x.dtype in STREAMS and x.shape[-1] % MULTIPLE == 0
    own = served and all(is_own(step.last, x) for step in steps)
    packed = any(isinstance(step.last, PackedModule) for step in steps)  # which nothing else can add
    if packed and not own:
        return None
    keeps = own and not packed and _bytes(steps) <= MOST_KEPT
    return Plan(steps, wirings == {PreNorm}, own, keeps, spans_of(*blocks), tried={})


def in_place(plan: Plan, last_norm: nn.Module | None, x: Tensor, ctx: Context, wanted: int | None = None) -> Tensor:
    """What the blocks and the norm behind them make of x, which stays as it is. [b s d] → [b s d]

    Where so many slots from the first on are `wanted`, those alone [b wanted d], if the last attention can.
    """
    stream = x.clone(memory_format=torch.contiguous_format)
    few = None if wanted is None else _last_attention(plan.steps, ctx)
    if plan.own:
        with without_asking():
            return _by_few_calls(plan, last_norm, stream, ctx, few, wanted)
    if plan.before:
        return _norms_before(plan.steps, last_norm, stream, ctx, few, wanted)
    for step in plan.steps:
        stream = _added_and_normed(stream, step, ctx, wanted if step is few else None)
    return stream if last_norm is None else last_norm(stream, ctx)


def _by_few_calls(
    plan: Plan, last_norm: nn.Module | None, stream: Tensor, ctx: Context, few: Step | None, wanted: int | None
) -> Tensor:
    """The same on a CPU: steps that the program knows are one call, as many as follow each other.

    Elsewhere a norm is taken of sums as they are made: of this step's, or for the step behind it. In bfloat16 that
    rounds less than steps that are a call each, so there it is all of them or none.
    """
    steps = plan.steps
    keeps = plan.keeps and (stream.dtype == torch.float32 or all(_is_known(step.mixer, stream, ctx) for step in steps))
    told: list[OneStep] = []  # steps that are still to be done
    read = None  # the norm of the stream, where it is made already
    last = last_norm if plan.before and norm_is_known(last_norm, stream) else None
    for step, following in zip(steps, [*(step.norm for step in steps[1:]), last], strict=True):
        norm = _row_norm(step.norm)
        behind = _row_norm(last) if last is not None and step is steps[-1] else None
        norms = Norms(norm, behind) if plan.before else Norms(None, norm)
        one = None if step is few else _as_one_step(step, norms, stream, ctx, keeps=keeps)
        if one is not None:
            told.append(one)
            read = None
            continue
        if told:
            _do(told, stream)
            told = []
        if not plan.before:
            hidden, stream = _hidden(stream, step, stream, ctx, wanted if step is few else None)
            add_rows(own_map(step.last), hidden, stream, None, norm, stream)
            continue
        read = step.norm(stream, ctx) if read is None else read
        hidden, stream = _hidden(stream, step, read, ctx, wanted if step is few else None)
        if following is None or read.shape != stream.shape:
            read = None if following is None else torch.empty_like(stream)
        add_rows(own_map(step.last), hidden, stream, stream, None if following is None else _row_norm(following), read)
    if told:
        _do(told, stream)
    if last is not None:
        return stream if read is None else read
    return stream if last_norm is None else last_norm(stream, ctx)


def _do(steps: list[OneStep], stream: Tensor) -> None:
    """Steps one after the other, in place; between them the stream is in single precision, and rounded at their end."""
    if stream.dtype == torch.float32 or len(steps) == 1:
        return do_steps(steps, stream, stream)
    wide = stream.float()
    do_steps(steps, wide, wide)
    stream.copy_(wide)
    return None


def _as_one_step(step: Step, norms: Norms, stream: Tensor, ctx: Context, *, keeps: bool) -> OneStep | None:
    """What the program is told of a step, if its maps are packed, or may be, and the program knows all of it."""
    mixer = step.mixer
    maps = _packed_maps(step, stream, keeps=keeps) if _is_known(mixer, stream, ctx) else None
    if maps is None:
        return None
    if not isinstance(mixer, Attention):
        name = programmed_name(mixer.activation)
        assert name is not None
        return feed_forward_step(norms, *maps, name, gated=isinstance(mixer, GatedMLP))
    if maps[0].numbers.kind != maps[1].numbers.kind:
        return None
    heads = mixer.heads, mixer.key_value_heads, mixer.key_width
    scale = mixer.key_width**-0.5 if mixer.scale is None else mixer.scale
    mask = ctx.mask(mixer.visibility, ctx.tokens, ctx.tokens, stream.device)
    return attention_step(stream, norms, *maps, heads, scale, mask)


def _is_known(mixer: Attention | MLP | GatedMLP, stream: Tensor, ctx: Context) -> bool:
    """Whether the program does all of a mixer between its maps."""
    if not isinstance(mixer, Attention):
        return programmed_name(mixer.activation) in ACTIVATIONS
    placed = ctx.position_vectors is not None or ctx.bias is not None
    known = BY_CONTENT.refusal(mixer) is None and mixer.value_width == mixer.key_width
    if placed or not known or type(ctx.tokens) not in (Tokens, InLine):
        return False
    mask = ctx.mask(mixer.visibility, ctx.tokens, ctx.tokens, stream.device)
    return suits_stream(stream, mixer.key_width, mask)


def _packed_maps(step: Step, stream: Tensor, *, keeps: bool) -> tuple[PackedMap, PackedMap] | None:
    """The first and the last map of a step in panels; plain ones only where these are kept."""
    first, last = (_packed(each, stream, keeps=keeps) for each in (step.first, step.last))
    return None if first is None or last is None else (first, last)


def _packed(module: nn.Module, stream: Tensor, *, keeps: bool) -> PackedMap | None:
    if (packed := packed_map(module)) is not None:
        return packed
    if not keeps or not (_is(nn.Linear, module) or _is(JoinedLinear, module)) or not _alike(module, stream):
        return None
    weight: Any = module._parameters["weight"]
    bias = module.whole_bias() if isinstance(module, JoinedLinear) else module._parameters["bias"]
    return kept_map(weight, bias) if takes_many(weight) else None


def _bytes(steps: list[Step]) -> int:
    """Of all matrices; those that come again are counted once."""
    matrices = [each._parameters.get("weight") for step in steps for each in (step.first, step.last)]
    return sum(each.nbytes for each in {id(each): each for each in matrices if each is not None}.values())


def _row_norm(norm: LayerNorm | RMSNorm) -> RowNorm:
    weight, shift, epsilon, rms = numbers_of(norm)
    return RowNorm(_single(weight), None if shift is None else _single(shift), epsilon, rms)


def _single(numbers: Tensor) -> Tensor:
    return numbers if numbers.dtype == torch.float32 else numbers.detach().float()


def _norms_before(
    steps: list[Step],
    last_norm: nn.Module | None,
    stream: Tensor,
    ctx: Context,
    few: Step | None,
    wanted: int | None,
) -> Tensor:
    """The same where the stream itself is never normed: biases wait until the end, and their sum grows."""
    read = torch.empty_like(stream)
    kind = torch.promote_types(stream.dtype, torch.float32)
    free, other = torch.empty(2, stream.shape[-1], dtype=kind, device=stream.device).unbind()  # rooms of sums, in turn
    waiting = bias = None  # [d] [d]
    for step in steps:
        waiting = norm_into(read, step.norm, stream, waiting=waiting, bias=bias, room=free)
        if waiting is free:
            free, other = other, free
        stream = _added(stream, step, read, ctx, wanted if step is few else None)
        bias = step.last.bias
        if step is few:
            read = torch.empty_like(stream)
    if norm_is_known(last_norm, stream):
        norm_into(read, last_norm, stream, waiting=waiting, bias=bias, room=free)
        return read
    last = [each for each in (waiting, bias) if each is not None]
    if last:
        stream += sum(last[1:], last[0])
    return stream if last_norm is None else last_norm(stream, ctx)


def _added(stream: Tensor, step: Step, read: Tensor, ctx: Context, wanted: int | None) -> Tensor:
    """stream + mixer(read), but for the bias of the last product: the stream itself, or the wanted slots of it."""
    hidden, stream = _hidden(stream, step, read, ctx, wanted)
    add_map(stream.view(-1, stream.shape[-1]), hidden, step.last.weight)
    return stream


def _added_and_normed(stream: Tensor, step: Step, ctx: Context, wanted: int | None) -> Tensor:
    """norm(stream + mixer(stream)), likewise."""
    hidden, stream = _hidden(stream, step, stream, ctx, wanted)
    rows = stream.view(-1, stream.shape[-1])  # [t d]
    if fits_normed(rows, hidden, step.last.weight):
        add_normed_map(rows, hidden, step.last, Norm(*numbers_of(step.norm)))
    else:
        add_map(rows, hidden, step.last.weight)
        norm_into(stream, step.norm, stream, bias=step.last.bias)
    return stream


def _hidden(stream: Tensor, step: Step, read: Tensor, ctx: Context, wanted: int | None) -> tuple[Tensor, Tensor]:
    """What the mixer's last product reads [t n], and the stream it is added to: that, or the wanted slots of it."""
    mixer = step.mixer
    if not isinstance(mixer, Attention):
        hidden = mixer.hidden(read)  # [b s n]
    elif wanted is None:
        hidden = mixer.hidden(read, ctx)  # [b s n]
    else:
        hidden, stream = mixer.hidden_of_first(read, ctx, wanted), stream[:, :wanted].contiguous()  # [b wanted n]
    return hidden.reshape(-1, hidden.shape[-1]), stream


def _last_attention(steps: list[Step], ctx: Context) -> Step | None:
    """The step behind which each slot is on its own, if a few slots can be asked there without the others."""
    last = next((step for step in reversed(steps) if isinstance(step.mixer, Attention)), None)
    if last is None or not isinstance(last.mixer, Attention):
        return None
    rows = type(ctx.tokens) is Tokens and ctx.tokens.documents is None
    placed = ctx.position_vectors is not None or ctx.bias is not None
    known = BY_CONTENT.refusal(last.mixer) is None and _is(JoinedLinear, last.mixer.project)
    return last if rows and known and not placed else None


def norm_into(
    y: Tensor,
    norm: LayerNorm | RMSNorm,
    x: Tensor,
    *,
    places: Tensor | None = None,
    waiting: Tensor | None = None,
    bias: Tensor | None = None,
    room: Tensor | None = None,
) -> Tensor | None:
    """y = norm(x + places + waiting + bias), where y may be x. [b s d]

    `places` are [s d], or of all rows. Given back is what waits from now on: waiting + bias, in that room.
    """
    weight, shift, epsilon, rms = numbers_of(norm)
    carried = None if bias is None else room
    if runs_our_own(x):
        from qkv.parts import norm_triton

        given = {"places": places, "waiting": waiting, "bias": bias, "carried": carried}
        norm_triton.norm_into(y, x, weight, shift, epsilon, rms=rms, **given)
        return waiting if carried is None else carried
    added = [each.to(widened(x).dtype) for each in (waiting, bias) if each is not None]
    wide = sum(added, widened(x))
    wide = wide if places is None else wide + places
    gain = weight.to(wide.dtype)
    if rms:
        y.copy_(F.rms_norm(wide, gain.shape, gain, epsilon))
    else:
        y.copy_(F.layer_norm(wide, gain.shape, gain, None if shift is None else shift.to(wide.dtype), epsilon))
    return waiting if carried is None else carried.copy_(sum(added[1:], added[0]))


def _step_of(wired: Any, x: Tensor) -> Step | None:
    if not _is(PostNorm, wired) and not (_is(PreNorm, wired) and _is(PathDropout, wired._modules["path"])):
        return None
    parts: dict[str, Any] = wired._modules
    mixer, norm = parts["mixer"], parts["norm"]
    if not norm_is_known(norm, x) or not _is(nn.Dropout, parts["dropout"]):
        return None
    if _is(Attention, mixer):
        first, last = mixer._modules["project"], mixer._modules["out"]
    elif (_is(MLP, mixer) or _is(GatedMLP, mixer)) and _is(nn.Dropout, mixer._modules["dropout"]):
        first, last = mixer._modules["inner"], mixer._modules["outer"]
    else:
        return None
    known = _is(nn.Linear, last) and _alike(last, x)
    return Step(mixer, norm, first, last) if known or (isinstance(last, PackedModule) and is_itself(last)) else None


def norm_is_known(norm: Any, x: Tensor) -> TypeGuard[LayerNorm | RMSNorm]:
    known = _is(LayerNorm, norm) or _is(RMSNorm, norm)
    return known and norm._parameters["weight"].shape == x.shape[-1:] and _alike(norm, x)


def _alike(module: nn.Module, x: Tensor) -> bool:
    """Whether its parameters are plain tensors beside x, of the same precision."""
    for each in module._parameters.values():
        if each is None:
            continue
        plain = type(each) is nn.Parameter or type(each) is Tensor
        if not (plain and each.dtype == x.dtype and each.device == x.device and each.is_contiguous()):
            return False
    return True


def _is(kind: type[nn.Module], module: object) -> bool:
    """Whether a module is of that very kind, all that it depends on is known, and it does nothing at random."""
    return type(module) is kind and ANSWERS.of(kind).refusal(module) is None and not module.training
