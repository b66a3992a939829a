"""The usual step of decoding on a CPU by our own program: all residual steps of a stack are one call of it.

One new token a row, nothing recorded, keys and values in a cache with room for them. Whatever is not the usual step
takes the way it always took; feed-forward takes any tokens, if they are few.

Shapes: b rows, h query heads, g key/value heads, k keys, d width of a key, e of a value, m sources.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qkv.generate.straight import StraightAttention, StraightMLP
from qkv.generate.straight_memory import StraightCrossAttention, StraightPostNorm, StraightRMSNorm
from qkv.generate.turns import turns_of
from qkv.parts.attention.attention import Attention, CrossAttention, MultiHead
from qkv.parts.attention.cache import PreallocatedCache
from qkv.parts.attention.visibility import Everything, NotPadding, Rule, Tokens
from qkv.parts.context import Context
from qkv.parts.cpu_steps import (
    ACTIVATIONS,
    ATTENDS,
    FEED_FORWARD,
    MULTIPLE,
    REMEMBERS,
    AttentionNumbers,
    FeedForwardNumbers,
    HeadNumbers,
    KeptNumbers,
    MemoryNumbers,
    MomentNumbers,
    NormNumbers,
    OneStep,
    PackedMap,
    StepsInOrder,
    copied,
    most_rows,
)
from qkv.parts.feedforward import MLP, GatedMLP, programmed_name
from qkv.parts.norm import numbers_of
from qkv.parts.position import Rotary
from qkv.parts.residual import PostNorm, PreNorm
from qkv.parts.stack import Stack

WIDEST_HEAD = 512


class ResidualStep(nn.Module, ABC):
    """after(x + mixer(before(x))), of which one norm is absent: a step that one call of the program does."""

    template: Any  # what is the same at every call

    def __init__(self, whole: nn.Module, norm: NormNumbers, held: list[Tensor]) -> None:
        """`whole` does what is not the usual step; `held` are the numbers that `norm` points to."""
        super().__init__()
        self.whole, self._held = whole, held
        none = NormNumbers()
        self.ends_normed = isinstance(whole, StraightPostNorm)
        self._norms = (none, norm) if self.ends_normed else (norm, none)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        step = self.told(x, ctx) if _is_plain(x) and _is_few(x) else None
        return self.whole(x, ctx) if step is None else done(StepsInOrder([step]), x, self.now(x, ctx, ctx.bias))

    @abstractmethod
    def told(self, x: Tensor, ctx: Context) -> OneStep | None:
        """What the program is told of this step for as long as keys and values lie where they do, but for the stream,
        which x is; None: it is not the usual step.
        """

    def now(self, x: Tensor, ctx: Context, bias: Tensor | None) -> Moment:
        """What it is told beside, of the token that comes now."""
        return ANY_MOMENT


class Moment(NamedTuple):
    numbers: MomentNumbers
    held: tuple[Tensor | None, ...] = ()  # what they point to


ANY_MOMENT = Moment(MomentNumbers())


def done(steps: StepsInOrder, x: Tensor, now: Moment) -> Tensor:
    """What becomes of the stream after these steps."""
    y = torch.empty_like(x)
    steps.do(x, y, now.numbers)
    return y


class FeedForwardStep(ResidualStep):
    def __init__(self, whole: nn.Module, norm: NormNumbers, held: list[Tensor], mixer: Any, maps: Maps) -> None:
        super().__init__(whole, norm, held)
        inner, outer = maps
        name = programmed_name(mixer.activation)
        assert name is not None
        gated = isinstance(mixer, GatedMLP)
        template = FeedForwardNumbers(
            before=self._norms[0], after=self._norms[1], inner=inner.numbers, outer=outer.numbers,
            activation=ACTIVATIONS[name], gated=gated,
        )  # fmt: skip
        self.template, self._maps = template, maps

    def told(self, x: Tensor, ctx: Context) -> OneStep:
        return OneStep(FEED_FORWARD, copied(self.template))


class AttentionStep(ResidualStep):
    """A token that sees all that stands before it, but padding."""

    def __init__(self, whole: nn.Module, norm: NormNumbers, held: list[Tensor], mixer: Attention, maps: Maps) -> None:
        super().__init__(whole, norm, held)
        self.mixer = mixer
        self._rotary, self._turns = mixer.rotary, ()
        template = AttentionNumbers(
            before=self._norms[0], after=self._norms[1], project=maps[0].numbers, out=maps[1].numbers,
            heads=_heads(mixer),
        )  # fmt: skip
        self.template, self._maps = template, maps

    _turns: tuple[Tensor, ...]

    def told(self, x: Tensor, ctx: Context) -> OneStep | None:
        cache, told = ctx.cache, ctx.visibility
        usual = x.shape[1] == 1 and type(cache) is PreallocatedCache and isinstance(told, NotPadding | Everything)
        rooms = cache.room(self.mixer) if usual and _unwatched(ctx) else None  # type: ignore[union-attr]
        if rooms is None or rooms[0].dtype != x.dtype or len(rooms[0]) != len(x):
            return None
        assert isinstance(cache, PreallocatedCache)
        step = copied(self.template)
        turns: tuple[Tensor, ...] = ()
        step.kept = _kept(rooms, 0, None)
        if self._rotary is not None:
            turns = self._turned(self._rotary, max(cache.capacity, ctx.longest()))
            step.cos, step.sin, step.partner = [each.data_ptr() for each in turns]
        return OneStep(ATTENDS, step, (rooms, turns))

    def now(self, x: Tensor, ctx: Context, bias: Tensor | None) -> Moment:
        cache = ctx.cache
        assert isinstance(cache, PreallocatedCache)
        cache.check_room(1)
        now, documents, positions = MomentNumbers(slots=cache.length + 1), None, None
        if ctx.tokens.documents is not None and isinstance(ctx.visibility, NotPadding):
            documents = _numbers(cache.keys(ctx.tokens).documents)  # [b k]
            now.documents = None if documents is None else documents.data_ptr()
        if bias is not None:
            bias = bias.float()  # [1 h 1 k]
            bias = bias if bias.stride(-1) == 1 else bias.contiguous()
            now.bias, now.bias_head = bias.data_ptr(), bias.stride(1)
            now.bias_row = 0 if len(bias) == 1 else bias.stride(0)
        if self.turns:
            positions = ctx.position_ids(x.device).expand(len(x), 1).contiguous()
            now.positions = positions.data_ptr()
        return Moment(now, (documents, bias, positions))

    @property
    def turns(self) -> bool:
        """Whether positions turn heads."""
        return self._rotary is not None

    def _turned(self, rotary: Rotary, positions: int) -> tuple[Tensor, ...]:
        """The tables of so many positions at least."""
        if not self._turns or len(self._turns[0]) < positions:
            self._turns = turns_of(rotary, positions, self.mixer.key_width, torch.zeros(0))
        return self._turns


class MemoryStep(ResidualStep):
    """A token that sees all of a memory, but padding."""

    def __init__(
        self, whole: nn.Module, norm: NormNumbers, held: list[Tensor], mixer: CrossAttention, maps: Maps
    ) -> None:
        super().__init__(whole, norm, held)
        self.mixer = mixer
        template = MemoryNumbers(
            before=self._norms[0], after=self._norms[1], query=maps[0].numbers, out=maps[1].numbers,
            heads=_heads(mixer),
        )  # fmt: skip
        self.template, self._maps = template, maps

    def told(self, x: Tensor, ctx: Context) -> OneStep | None:
        rows, slots, _ = x.shape
        usual = slots == 1 and ctx.memory is not None and ctx.cache is not None
        told = isinstance(ctx.visibility, NotPadding | Everything) and ctx.memory_position_vectors is None
        if not (usual and told and _unwatched(ctx)):
            return None
        assert ctx.cache is not None
        k, v = ctx.cache.of_memory(self.mixer, lambda: self._in_one_piece(ctx))  # [m g k d] [m g k e]
        if k.dtype != x.dtype or rows % len(k):
            return None
        k, v = k.contiguous(), v.contiguous()
        step = copied(self.template)
        tokens: Tokens | None = ctx.memory_tokens
        documents = None if tokens is None or isinstance(ctx.visibility, Everything) else tokens.documents
        documents = _numbers(documents)  # [m k]
        step.kept, step.beams = _kept((k, v), k.shape[2], documents), rows // len(k)
        return OneStep(REMEMBERS, step, (k, v, documents))

    def _in_one_piece(self, ctx: Context) -> tuple[Tensor, Tensor]:
        k, v = self.mixer.read_memory(ctx)
        return k.contiguous(), v.contiguous()


class Told(NamedTuple):
    """All steps of a stack, and what they were told for."""

    steps: StepsInOrder
    shape: torch.Size
    kind: torch.dtype
    visibility: type[Rule]
    memory_tokens: Tokens | None

    def serves(self, x: Tensor, ctx: Context) -> bool:
        same = x.shape == self.shape and x.dtype == self.kind and type(ctx.visibility) is self.visibility
        watched = not _unwatched(ctx) or ctx.memory_position_vectors is not None
        return same and ctx.memory_tokens is self.memory_tokens and not watched


class StepsOfStack(nn.Module):
    """A stack all of whose steps are residual ones, and usual: one call of the program does them, and the last norm.

    What the program is told is made once, and noted in the cache for all tokens that find it as it was.
    """

    def __init__(self, whole: Stack, steps: list[ResidualStep], norm: NormNumbers | None, held: list[Tensor]) -> None:
        super().__init__()
        self.whole, self._steps, self._norm, self._held = whole, steps, norm, held
        looking_back = [step for step in steps if isinstance(step, AttentionStep)]
        # All are told the same moment, and it takes one that turns to tell positions.
        self._teller = max(looking_back, key=lambda step: step.turns, default=steps[0])

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        told = self._told(x, ctx) if _is_plain(x) else None
        if told is None:
            return self.whole(x, ctx)
        return done(told.steps, x, self._teller.now(x, ctx, self.whole.bias_of(ctx)))

    def _told(self, x: Tensor, ctx: Context) -> Told | None:
        cache = ctx.cache
        noted = cache.noted(self) if isinstance(cache, PreallocatedCache) else None
        if isinstance(noted, Told) and noted.serves(x, ctx):
            return noted
        if not _is_few(x):
            return None
        steps = []
        for step in self._steps:
            one = step.told(x, ctx)
            if one is None:
                return None
            steps.append(one)
        if self._norm is not None:
            steps[-1].numbers.after = self._norm
        told = Told(StepsInOrder(steps), x.shape, x.dtype, type(ctx.visibility), ctx.memory_tokens)
        if isinstance(cache, PreallocatedCache):
            cache.note(self, told)
        return told


def steps_of_stack(stack: nn.Module) -> nn.Module | None:
    """What takes the place of a stack whose steps are packed; None: not all of them are.

    Asked for what `known.STACK` honours only.
    """
    if not isinstance(stack, Stack):
        return None
    every = [step for number in stack.order for step in stack.blocks[number].children()]
    steps = [step for step in every if isinstance(step, ResidualStep)]
    if not steps or len(steps) < len(every):
        return None
    if stack.norm is None:
        return StepsOfStack(stack, steps, None, [])
    return None if steps[-1].ends_normed else StepsOfStack(stack, steps, *_numbers_of_norm(stack.norm))


Maps = tuple[PackedMap, PackedMap]


def residual_step(wired: nn.Module, whole: Callable[[nn.Module], nn.Module | None]) -> nn.Module | None:
    """What takes the place of a norm and a mixer whose maps are packed; None: the program does not know their sizes.

    Asked for what `known.STEPS` honours only. `whole` gives what does whatever is not the usual step.
    """
    if not isinstance(wired, PreNorm | PostNorm):
        return None
    norm = _numbers_of_norm(wired.norm)
    mixer: Any = wired.mixer
    if isinstance(mixer, StraightAttention | StraightCrossAttention | StraightMLP):
        mixer = mixer.whole
    rest = whole(wired) or wired
    if isinstance(mixer, MLP | GatedMLP):
        maps = _maps(mixer.inner, mixer.outer)
        return None if maps is None else FeedForwardStep(rest, *norm, mixer, maps)
    maps = _maps(mixer.query if isinstance(mixer, CrossAttention) else mixer.project, mixer.out)
    if maps is None or not _fits(mixer):
        return None
    kind = MemoryStep if isinstance(mixer, CrossAttention) else AttentionStep
    return kind(rest, *norm, mixer, maps)


def _maps(first: nn.Module, last: nn.Module) -> Maps | None:
    """Both maps as the program knows them; None where one is not packed, or does not end in a stream it knows."""
    one, other = (getattr(getattr(part, "together", part), "map", None) for part in (first, last))
    if not isinstance(one, PackedMap) or not isinstance(other, PackedMap) or other.outputs % MULTIPLE:
        return None
    return one, other


def _numbers_of_norm(norm: Any) -> tuple[NormNumbers, list[Tensor]]:
    norm = norm.whole if isinstance(norm, StraightRMSNorm) else norm
    gain, shift, epsilon, rms = numbers_of(norm)
    held = [each.detach().float().contiguous() for each in (gain, shift) if each is not None]
    places = [each.data_ptr() for each in held]
    return NormNumbers(places[0], None if shift is None else places[1], epsilon, rms), held


def _fits(attention: MultiHead) -> bool:
    return all(each % MULTIPLE == 0 and each <= WIDEST_HEAD for each in (attention.key_width, attention.value_width))


def _heads(attention: MultiHead) -> HeadNumbers:
    scale = attention.key_width**-0.5 if attention.scale is None else attention.scale
    return HeadNumbers(attention.heads, attention.key_value_heads, attention.key_width, attention.value_width, scale)


def _kept(rooms: tuple[Tensor, Tensor], slots: int, documents: Tensor | None) -> KeptNumbers:
    """keys [b g c d], of which the first `slots` count, if `documents` [b k] hide none."""
    keys, values = rooms
    hidden = None if documents is None else documents.data_ptr()
    return KeptNumbers(keys.data_ptr(), values.data_ptr(), keys.shape[2], slots, hidden)


def _numbers(documents: Tensor | None) -> Tensor | None:
    """As the program reads them."""
    return None if documents is None else documents.long().contiguous()


def _is_plain(x: Tensor) -> bool:
    """Whether the program reads it as it lies, and nobody asks for another precision."""
    return x.is_contiguous() and not torch.is_autocast_enabled("cpu")


def _is_few(x: Tensor) -> bool:
    """Whether there are few tokens, in a precision that the program knows."""
    return 0 < x.numel() <= most_rows(x.dtype) * x.shape[-1]


def _unwatched(ctx: Context) -> bool:
    return ctx.ledger is None and ctx.position_vectors is None
