"""A step of decoding recorded once and replayed: the host then says one thing a token, not one for each operator.

Shapes: r rows, m sources, t tokens a round, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from qkv.generate.continuation import Standpoint
from qkv.models.sequence_to_sequence import EncoderDecoder, Memory
from qkv.models.text_model import TextModel
from qkv.parts.agreement import disagreement, say_refused
from qkv.parts.attention.standing import FromTheStart, StandingCache
from qkv.parts.attention.visibility import NotPadding, Tokens
from qkv.parts.past_windows import fill_past, passed, spans_of
from qkv.parts.precision import widened
from qkv.parts.recording import recorded
from qkv.parts.spec import Unchanged

if TYPE_CHECKING:
    from qkv.generate.step_triton import FusedStep

ROUND = 16  # tokens that a device writes before the host looks at them
READ = 32  # a text is read in a multiple of so many slots
AHEAD = 2  # rounds under way: one is looked at while the next is written


class Shape(NamedTuple):
    """What is fixed when a step is recorded."""

    rows: int
    capacity: int
    sources: int
    slots: int  # of a source


class Recording:
    """The state of a step, where a graph finds it, and the step itself.

    A step reads the token of each row, writes the logits of the next one, and chooses the likeliest that is allowed as
    the token to be read next; whoever chooses otherwise writes another one over it.
    """

    def __init__(self, model: TextModel | EncoderDecoder, like: Standpoint, shape: Shape) -> None:
        self.shape, device = shape, next(model.parameters()).device
        self.cache = StandingCache(like.cache, *shape)
        self.tokens = torch.zeros(shape.rows, 1, dtype=torch.long, device=device)
        self.positions = torch.zeros(shape.rows, 1, dtype=torch.long, device=device)
        self.first = torch.zeros(shape.rows, 1, dtype=torch.long, device=device)  # slots of padding before each row
        self.order = torch.arange(shape.rows, device=device)
        self.count = torch.zeros(shape.rows, dtype=torch.long, device=device)
        self.written = torch.zeros(ROUND, shape.rows, dtype=torch.long, device=device)
        self.log_probabilities = torch.zeros(ROUND, shape.rows, dtype=torch.float32, device=device)
        vocabulary = model.vocabulary if isinstance(model, TextModel) else model.target_vocabulary
        self.forbidden = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        self.memory: Memory | None = None
        if like.memory is not None:
            states = like.memory.states.new_zeros(1).expand(shape.sources, shape.slots, like.memory.states.shape[-1])
            self.memory = Memory(states, Tokens(shape.slots, documents=self.cache.memory_real))
        self.logits: Tensor | None = None  # [r v]
        self.plan = _fused_step(model, self)
        self._tried = self.plan is None
        self.weights, self.unchanged = weights_of(model), Unchanged(model.children())
        self.step = recorded(lambda: self._step(model), device)
        self._reorder: Callable[[], None] | None = None
        self._reads: dict[int, Reading] = {}  # by their slots

    def read(self, model: nn.Module, text: list[int]) -> Tensor:
        """Begin with a text, in a record of one row; the logits of what comes next. [1 v]"""
        assert isinstance(model, TextModel)
        slots = min(-(-len(text) // READ) * READ, self.shape.capacity)
        if slots not in self._reads:
            self._reads[slots] = Reading(model, self.cache, slots)
        self.cache.begin_at(len(text))
        self.positions.fill_(len(text))
        self.first.zero_()
        self.forbidden.zero_()
        return self._reads[slots].logits_after(text)

    def fill(self, start: Standpoint) -> None:
        """Begin from there."""
        self.cache.fill(start.cache, None if start.memory is None else start.memory.tokens)
        self.positions.fill_(start.cache.length)
        if start.lengths is not None:
            self.positions[: len(start.lengths), 0] = start.lengths
        self.first.copy_(self.cache.place - self.positions)
        self.forbidden.zero_()

    def try_plan(self, model: TextModel | EncoderDecoder, start: Standpoint) -> None:
        """Once, from where it begins: the step by custom kernels beside the model's own, which takes its place where
        they differ. And from its last slot, if that lies behind a window: with other keys and values, so it is filled
        anew."""
        if self._tried or self.plan is None:
            return
        self._tried, why = True, self._disagreement(model, self.plan)
        last = self.shape.capacity - 1
        narrow = passed(spans_of(model), last)
        if why is None and narrow:
            self.cache.begin_at(last)
            self.cache.real[0, 0] = 0
            self.positions.fill_(last)
            self.positions[0] -= 1
            self.first.copy_(last - self.positions)
            for _, rooms in self.cache.rooms():
                fill_past(rooms, [each.span for each in narrow], 0, last)
            why = self._disagreement(model, self.plan)
            for _, rooms in self.cache.rooms():
                torch._foreach_zero_(list(rooms))
            self.fill(start)
        if why is not None:
            self.plan = None
            self.step = recorded(lambda: self._step(model), self.order.device)
            say_refused("A step of decoding by custom kernels", why)

    def _disagreement(self, model: TextModel | EncoderDecoder, plan: FusedStep) -> str | None:
        """How far a step by custom kernels is from the model's own; all stays as it was but the slot of the token."""
        cache = self.cache
        kept = [(each, each.clone()) for each in (self.tokens, self.positions, self.count, cache.place, cache.real)]
        fast = plan.step().clone()
        for each, before in kept:
            each.copy_(before)
        cache.begin_step()
        plain = next_logits(model, self.tokens, self.positions, cache, self.memory)
        for each, before in kept:
            each.copy_(before)
        return disagreement(_from_mean(fast), _from_mean(plain), rounded=plain.dtype != torch.float32)

    def reorder(self, rows: list[int]) -> None:
        """Row i becomes what row `rows[i]` was."""
        if self._reorder is None:
            # Recording does the work once: by the order as it stands before any, which changes nothing.
            self._reorder = recorded(self._reordered, self.order.device)
        self.order.copy_(torch.tensor(rows))
        self._reorder()

    def rounds(self, most: int) -> Iterator[tuple[list[int], list[float]]]:
        """The next `most` tokens of all rows and their log-probabilities, step by step, the likeliest each time."""
        under_way: list[Callable[[], tuple[Tensor, ...]]] = []
        begun = 0
        self.count.zero_()
        while begun < most or under_way:
            while begun < most and len(under_way) < AHEAD:
                steps = min(ROUND, most - begun)
                for _ in range(steps):
                    self.step()
                under_way.append(to_host(self.written[:steps], self.log_probabilities[:steps]))
                self.count.zero_()
                begun += steps
            tokens, log_probabilities = under_way.pop(0)()
            yield from zip(tokens.tolist(), log_probabilities.tolist(), strict=True)

    def _step(self, model: TextModel | EncoderDecoder) -> None:
        if self.plan is not None:
            self.logits = self.plan.step()
            return
        cache = self.cache
        cache.begin_step()
        self.logits = logits = next_logits(model, self.tokens, self.positions, cache, self.memory)
        cache.end_step()
        self.positions.add_(1)
        own = widened(logits).log_softmax(-1).masked_fill_(self.forbidden, -torch.inf)
        best, tokens = own.max(-1)
        self.tokens.copy_(tokens[:, None])
        self.written.index_copy_(0, self.count[:1], tokens[None])
        self.log_probabilities.index_copy_(0, self.count[:1], best[None].float())
        self.count.add_(1).remainder_(ROUND)

    def _reordered(self) -> None:
        self.cache.reorder(self.order)
        self.positions.copy_(self.positions[self.order])
        self.first.copy_(self.first[self.order])


class Reading:
    """How a text of one row is read: filled up to so many slots behind its end, which nothing before it sees."""

    def __init__(self, model: TextModel, cache: StandingCache, slots: int) -> None:
        device = cache.place.device
        self.ids = torch.zeros(1, slots, dtype=torch.long, device=device)
        self.last = torch.zeros(1, dtype=torch.long, device=device)
        self.logits: Tensor | None = None
        self.model, self.rooms = model, FromTheStart(cache)
        self.read = recorded(self._read, device)

    def logits_after(self, text: list[int]) -> Tensor:
        self.ids[0, : len(text)] = torch.tensor(text)
        self.last.fill_(len(text) - 1)
        self.read()
        assert self.logits is not None
        return self.logits

    def _read(self) -> None:
        tokens = Tokens(self.ids.shape[1])
        states = self.model.states(self.ids, self.model.context(self.ids, tokens=tokens, cache=self.rooms))
        self.logits = self.model.head(states.index_select(1, self.last))[:, 0]


def next_logits(
    model: TextModel | EncoderDecoder, ids: Tensor, positions: Tensor, cache: StandingCache, memory: Memory | None
) -> Tensor:
    """By the model's own parts. ids [r 1], positions [r 1] → [r v]"""
    token = cache.next_token
    if isinstance(model, TextModel):
        states = model.states(ids, model.context(ids, tokens=token, positions=positions, cache=cache))
    else:
        assert memory is not None
        states = model.decode_states(ids, memory, token, NotPadding(), positions, cache)
    logits: Tensor = model.head(states)
    return logits[:, 0]


def _from_mean(logits: Tensor) -> Tensor:
    """What a softmax reads of logits."""
    wide = widened(logits)
    return wide - wide.mean(-1, keepdim=True)


def to_host(*tensors: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """Copies under way; called, it waits until they are there."""
    if not tensors[0].is_cuda:
        copies = tuple(tensor.clone() for tensor in tensors)
        return lambda: copies
    there = tuple(torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors)
    for copy, tensor in zip(there, tensors, strict=True):
        copy.copy_(tensor, non_blocking=True)
    done = torch.cuda.Event()
    done.record()

    def wait() -> tuple[Tensor, ...]:
        done.synchronize()
        return there

    return wait


def _fused_step(model: TextModel | EncoderDecoder, record: Recording) -> FusedStep | None:
    """A step by programs of our own, where there are some for all parts of a model."""
    from qkv.generate.fused import Plan, plan_of

    plan = plan_of(model)
    return plan(record) if isinstance(plan, Plan) else None


def weights_of(model: nn.Module) -> list[tuple[int, torch.dtype]]:
    """Where a record finds the weights: it is of no use once they lie elsewhere."""
    return [(weight.data_ptr(), weight.dtype) for weight in model.parameters()]
