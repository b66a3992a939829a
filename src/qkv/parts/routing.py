"""Which experts a token goes to, and with what weight. [fedus2022 §2.1]

Shapes: b rows, s slots, d width, e experts, k experts that a token goes to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.parts.context import Context
from qkv.parts.precision import widened, without_autocast

Shares = Callable[[Tensor], Tensor]  # probabilities of the experts chosen [b s k] → what each counts [b s k]


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


class Routing(NamedTuple):
    logits: Tensor  # [b s e] float32
    probabilities: Tensor  # [b s e] float32, their softmax
    experts: Tensor  # [b s k] long: those chosen, the likeliest first
    weights: Tensor  # [b s k] float32: what each counts; 0 where its expert was full
    kept: Tensor | None  # [b s k] bool: whether the expert had room; None: there is always room
    rooms: Rooms | None = None  # where each goes, if an expert has the same room for all texts and each row is one


class Router(nn.Module):
    """A linear map and a softmax, in float32 whatever the model's precision [fedus2022 §2.4].

    In training the router's input is multiplied by 1 ± `jitter`, so that experts are tried [fedus2022 §2.2].
    """

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
            probabilities = logits.softmax(-1)
            top = probabilities.max(-1, keepdim=True) if self.chosen == 1 else probabilities.topk(self.chosen, -1)
            likely, experts = top.values, top.indices  # [b s k] each
            weights = self.shares(likely)
        if self.capacity is None:
            return Routing(logits, probabilities, experts, weights, None)
        kept, rooms = self._room(self.capacity, experts, ctx)
        return Routing(logits, probabilities, experts, weights * kept, kept, rooms)

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


def _first_slots(documents: Tensor) -> Tensor:
    """The slot where the text of each token begins. [b s] → [b s]"""
    slots = torch.arange(documents.shape[1], device=documents.device)
    changes = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0))  # the first slot begins a text in any case
    return torch.where(changes, slots, 0).cummax(1).values


def _lengths(documents: Tensor, first: Tensor) -> Tensor:
    """How many tokens the text of each has. [b s]"""
    from_behind = _first_slots(documents.flip(1)).flip(1)  # tokens behind the last one of the text
    return documents.shape[1] - from_behind - first


class Tally(NamedTuple):
    """Sums over the tokens of a pass, of which all figures are made; those of other devices can be added to them."""

    tokens: Tensor  # [] how many
    chosen: Tensor  # [e] of which so many chose each expert, whether it had room or not; each of k choices is 1/k
    probabilities: Tensor  # [e]
    squares: Tensor  # [] of log Σ exp of a token's logits
    full: Tensor  # [] choices whose expert was full; each of k is 1/k


def tally(routing: Routing, ctx: Context) -> Tally:
    """In float32 at least; padding counts nothing."""
    probabilities, documents, chosen = routing.probabilities, ctx.tokens.documents, routing.experts.shape[-1]
    if documents is None:
        real = probabilities.new_ones(probabilities.shape[:2])
    else:
        real = (documents > 0).to(probabilities.dtype).expand(probabilities.shape[:2])  # [b s]
    numbers = torch.arange(probabilities.shape[-1], device=real.device)
    choices = (routing.experts[..., None] == numbers).sum(2)  # [b s e]
    full = real.new_zeros(()) if routing.kept is None else ((~routing.kept).sum(-1) * real).sum() / chosen
    return Tally(
        real.sum(),
        (choices * real[..., None]).sum((0, 1)) / chosen,
        (probabilities * real[..., None]).sum((0, 1)),
        (routing.logits.logsumexp(-1).square() * real).sum(),
        full,
    )


def loads(sums: Tally) -> Tensor:
    """The share of the tokens that chose each expert, whether it had room or not. [e]"""
    return sums.chosen / sums.tokens.clamp(min=1)


def dropped(sums: Tally) -> Tensor:
    """The share of choices whose expert was full. []"""
    return sums.full / sums.tokens.clamp(min=1)


def balance_loss(sums: Tally) -> Tensor:
    """experts · Σ share of tokens · mean probability: 1 where all experts are used alike, more elsewhere. []

    [fedus2022 eq.4], without its α; where a token goes to several experts, each is a share of it.
    """
    mean = sums.probabilities / sums.tokens.clamp(min=1)  # [e]
    return len(mean) * (loads(sums) * mean).sum()


def z_loss(sums: Tally) -> Tensor:
    """The mean square of log Σ exp of a token's logits, which keeps them small. [zoph2022 eq.5] []"""
    return sums.squares / sums.tokens.clamp(min=1)
