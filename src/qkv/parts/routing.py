"""Which experts a token goes to, and with what weight. [fedus2022 §2.1]

Shapes: b rows, s slots, d width, e experts, k experts that a token goes to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.context import Context
from qkv.parts.precision import widened, without_autocast
from qkv.parts.programs import runs_or_counts
from qkv.parts.spec import Depends

Shares = Callable[[Tensor], Tensor]  # probabilities of the experts chosen [b s k] → what each counts [b s k]

MOST_BY_PROGRAMS = 256  # experts whose probabilities of a few tokens a program of a GPU can hold at once


def of_all(probabilities: Tensor) -> Tensor:
    """An expert counts as much as it was likely among all experts. [fedus2022 eq.2]"""
    return probabilities


def of_chosen(probabilities: Tensor) -> Tensor:
    """An expert counts as much as it was likely among those chosen: all together count 1. [jiang2024 §2.1]"""
    return probabilities / probabilities.sum(-1, keepdim=True)


@dataclass(frozen=True)
class Capacity:
    """How many tokens of one text an expert takes: a number, or the share of an even split times a factor.

    [fedus2022 eq.3], counted in each text and not in the whole batch, so that no text depends on its company.
    By a factor the number follows from the length so far: a text that is read token by token may lose others than one
    that is read at once.
    """

    tokens: int | None = None
    factor: float | None = None

    def __post_init__(self) -> None:
        said = [each for each in (self.tokens, self.factor) if each is not None]
        if len(said) != 1 or said[0] <= 0:
            raise QkvError("The capacity of an expert is a number of tokens or a factor, one of them and above 0.")

    def of(self, lengths: Tensor | int, experts: int) -> Tensor | int:
        """For texts of these lengths."""
        if self.tokens is not None:
            return self.tokens
        assert self.factor is not None
        if isinstance(lengths, int):
            return math.ceil(self.factor * lengths / experts)
        return (self.factor * lengths / experts).ceil().long()


class Rooms(NamedTuple):
    """So many places of each expert for each text, and the place of each choice there."""

    places: int
    number: Tensor  # [b s k] long, from 0; places or more: the expert was full


class Counted(NamedTuple):
    """What a program that chooses experts counts along the way."""

    number: Tensor  # [b s] long: how many tokens of the row before it chose the same expert
    sums: Tensor  # [b 2e+3] the tally of each row, packed


class Routing(NamedTuple):
    logits: Tensor  # [b s e] float32
    experts: Tensor  # [b s k] long: those chosen, the likeliest first
    weights: Tensor  # [b s k] float32: what each counts; 0 where its expert was full
    kept: Tensor | None  # [b s k] bool: whether the expert had room; None: there is always room
    rooms: Rooms | None = None  # where each goes, if an expert has the same room for all texts and each row is one
    counted: Counted | None = None  # where programs chose


class Router(nn.Module):
    """A linear map and a softmax, in float32 whatever the model's precision [fedus2022 §2.4].

    In training the router's input is multiplied by 1 ± `jitter`, so that experts are tried [fedus2022 §2.2].
    """

    depends_on = Depends("experts", "chosen", "shares", "weight", capacity=None, jitter=0.0, bias=None)

    def __init__(
        self,
        width: int,
        experts: int,
        chosen: int = 1,
        *,
        shares: Shares = of_all,
        capacity: Capacity | None = None,
        jitter: float = 0.0,
        bias: bool = False,
    ) -> None:
        super().__init__()
        if not 1 <= chosen <= experts:
            raise QkvError(f"A token goes to 1 to {experts} experts where there are so many, not to {chosen}.")
        self.experts, self.chosen, self.shares = experts, chosen, shares
        self.capacity, self.jitter = capacity, jitter
        self.weight = nn.Parameter(torch.empty(experts, width))
        self.bias = nn.Parameter(torch.zeros(experts)) if bias else None
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor, ctx: Context) -> Routing:
        """[b s d]"""
        with without_autocast(x):
            wide = widened(x)
            if self.training and self.jitter:
                wide = wide * torch.empty_like(wide).uniform_(1 - self.jitter, 1 + self.jitter)
            bias = None if self.bias is None else self.bias.to(wide.dtype)
            logits = F.linear(wide, self.weight.to(wide.dtype), bias)  # [b s e]
            if self._by_programs(logits, ctx):
                return self._chosen_by_programs(logits)
            probabilities = logits.softmax(-1)
            top = probabilities.max(-1, keepdim=True) if self.chosen == 1 else probabilities.topk(self.chosen, -1)
            likely, experts = top.values, top.indices  # [b s k] each
            weights = self.shares(likely)
        if self.capacity is None:
            return Routing(logits, experts, weights, None)
        kept, rooms = self._room(self.capacity, experts, ctx)
        return Routing(logits, experts, weights * kept, kept, rooms)

    def _by_programs(self, logits: Tensor, ctx: Context) -> bool:
        """Whether programs know this way of choosing: one expert of a few, and every row is one text from its start."""
        plain = self.chosen == 1 and self.shares is of_all and self.experts <= MOST_BY_PROGRAMS
        whole = ctx.cache is None and ctx.tokens.documents is None
        return plain and whole and runs_or_counts(logits) and logits.dtype == torch.float32

    def _chosen_by_programs(self, logits: Tensor) -> Routing:
        slots = logits.shape[1]
        room = slots if self.capacity is None else self.capacity.of(slots, self.experts)
        assert isinstance(room, int)
        weights, sums, experts, number, kept = _Chosen.apply(logits, room)
        choices, counted = (experts[..., None], weights[..., None]), Counted(number, sums)
        if self.capacity is None:
            return Routing(logits, *choices, None, None, counted)
        return Routing(logits, *choices, kept[..., None], Rooms(room, number[..., None]), counted)

    def _room(self, capacity: Capacity, experts: Tensor, ctx: Context) -> tuple[Tensor, Rooms | None]:
        """Whether fewer tokens before it in its text chose the same expert than this takes. [b s k]

        With a cache those of earlier steps are before it too. Padding is a text of its own.
        """
        new, tokens = experts.shape[1], ctx.tokens
        if ctx.cache is not None:
            slots = experts[:, None]  # as keys are kept: [b 1 s k]
            experts, tokens = ctx.cache.extend(self, slots, slots)[0].squeeze(1), ctx.cache.keys(tokens)
        choices, device = experts.flatten(1), experts.device  # [b s·k]
        chose = choices[:, None] == torch.arange(self.experts, device=device)[:, None]  # [b e s·k]
        counts = F.pad(chose.cumsum(-1), (1, 0)).flatten(1)  # [b e·(s·k+1)], of each expert from 0 on
        start = choices * (choices.shape[1] + 1)  # where the counts of the expert chosen begin
        ranks = counts.gather(1, start + torch.arange(1, choices.shape[1] + 1, device=device))  # the first is number 1
        most = capacity.of(experts.shape[1], self.experts)
        if tokens.documents is not None:
            first = _first_slots(tokens.documents)  # [b s]
            most = capacity.of(_lengths(tokens.documents, first), self.experts) if capacity.tokens is None else most
            before = (self.chosen * first)[..., None].expand_as(experts).flatten(1)
            ranks = ranks - counts.gather(1, start + before)  # less those of the texts before
        ranks = ranks.unflatten(1, (-1, self.chosen))  # [b s k]
        if isinstance(most, Tensor):
            return (ranks <= most[..., None])[:, -new:], None
        rooms = Rooms(most, ranks - 1) if ctx.cache is None and tokens.documents is None else None
        return (ranks <= most)[:, -new:], rooms

    def extra_repr(self) -> str:
        return f"{self.chosen} of {self.experts} experts" + (f", {self.capacity}" if self.capacity else "")


class _Chosen(torch.autograd.Function):
    """What `Router.forward` does with logits, and `tally` with the answer, by programs of a GPU."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, room: int) -> tuple[Tensor, ...]:
        from qkv.parts import expert_triton  # Triton comes with torch's builds for GPUs only

        logits = logits.contiguous()
        made = expert_triton.choose(logits, room)
        ctx.save_for_backward(logits, made.experts, made.kept, made.log_sum)
        ctx.mark_non_differentiable(made.experts, made.number, made.kept)
        ctx.set_materialize_grads(False)
        return made.weights, made.sums, made.experts, made.number, made.kept

    @staticmethod
    def backward(ctx: Any, from_weights: Tensor | None, from_sums: Tensor | None, *_: None) -> tuple[Tensor, None]:
        from qkv.parts import expert_triton

        logits, experts, kept, log_sum = ctx.saved_tensors
        return expert_triton.choose_backward(logits, experts, kept, log_sum, from_weights, from_sums), None


def _first_slots(documents: Tensor) -> Tensor:
    """The slot where the text of each token begins. [b s] → [b s]"""
    slots = torch.arange(documents.shape[1], device=documents.device)
    changes = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0))  # the first slot begins a text in any case
    return torch.where(changes, slots, 0).cummax(1).values


def _lengths(documents: Tensor, first: Tensor) -> Tensor:
    """How many tokens the text of each has. [b s]"""
    from_behind = _first_slots(documents.flip(1)).flip(1)  # tokens behind the last one of the text
    return documents.shape[1] - from_behind - first


@dataclass(frozen=True)
class Tally:
    """Sums over the tokens of a pass, of which all figures are made. Those of other devices can be added to them.

    One tensor, so that many are stacked, sent and added at once; a tally of several layers has one more axis in front.
    """

    packed: Tensor  # [… 2e+3]

    @property
    def tokens(self) -> Tensor:
        """How many. […]"""
        return self.packed[..., 0]

    @property
    def chosen(self) -> Tensor:
        """Of which so many chose each expert, whether it had room or not; each of k choices is 1/k. [… e]"""
        return self.packed[..., 1 : self.packed.shape[-1] // 2]

    @property
    def probabilities(self) -> Tensor:
        """[… e]"""
        return self.packed[..., self.packed.shape[-1] // 2 : -2]

    @property
    def squares(self) -> Tensor:
        """Of log Σ exp of a token's logits. […]"""
        return self.packed[..., -2]

    @property
    def full(self) -> Tensor:
        """Choices whose expert was full; each of k is 1/k. […]"""
        return self.packed[..., -1]


def tally(routing: Routing, ctx: Context) -> Tally:
    """In float32 at least; padding counts nothing."""
    if routing.counted is not None:
        return Tally(routing.counted.sums.sum(0))
    logits, documents, chosen = routing.logits, ctx.tokens.documents, routing.experts.shape[-1]
    if documents is None:
        real = logits.new_ones(logits.shape[:2])
    else:
        real = (documents > 0).to(logits.dtype).expand(logits.shape[:2])  # [b s]
    numbers = torch.arange(logits.shape[-1], device=real.device)
    choices = (routing.experts[..., None] == numbers).sum(2).to(logits.dtype) / chosen  # [b s e]
    logarithm = logits.logsumexp(-1, keepdim=True)  # [b s 1]
    full = torch.zeros_like(logarithm) if routing.kept is None else (~routing.kept).sum(-1, keepdim=True) / chosen
    of_token = [torch.ones_like(logarithm), choices, (logits - logarithm).exp(), logarithm.square(), full]
    return Tally((torch.cat(of_token, -1) * real[..., None]).sum((0, 1)))


def loads(sums: Tally) -> Tensor:
    """The share of the tokens that chose each expert, whether it had room or not. [… e]"""
    return sums.chosen / sums.tokens.clamp(min=1)[..., None]


def dropped(sums: Tally) -> Tensor:
    """The share of choices whose expert was full. […]"""
    return sums.full / sums.tokens.clamp(min=1)


def balance_loss(sums: Tally) -> Tensor:
    """experts · Σ share of tokens · mean probability: 1 where all experts are used alike, more elsewhere. […]

    [fedus2022 eq.4], without its α; where a token goes to several experts, each is a share of it.
    """
    mean = sums.probabilities / sums.tokens.clamp(min=1)[..., None]  # [… e]
    return mean.shape[-1] * (loads(sums) * mean).sum(-1)


def z_loss(sums: Tally) -> Tensor:
    """The mean square of log Σ exp of a token's logits, which keeps them small. [zoph2022 eq.5] […]"""
    return sums.squares / sums.tokens.clamp(min=1)
