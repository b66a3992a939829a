"""Rows that are carried on by a recorded step, once what stands before them has been read in the ordinary way.

Shapes: m sources, r rows, v vocabulary.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from qkv.generate.continuation import Continuation, Standpoint
from qkv.generate.recording import Recording, Shape, weights_of
from qkv.models.sequence_to_sequence import EncoderDecoder
from qkv.models.text_model import TextModel
from qkv.parts.attention.attention import Attention, CrossAttention
from qkv.parts.attention.visibility import Causal, Everything, NotPadding, Window
from qkv.parts.attention.whole_rows import rules_of
from qkv.parts.block import Block
from qkv.parts.embed import Embed, TokenEmbedding
from qkv.parts.feedforward import ACTIVATIONS, MLP, GatedMLP
from qkv.parts.heads import LogitHead, TiedHead
from qkv.parts.linear import JoinedLinear
from qkv.parts.norm import LayerNorm, RMSNorm
from qkv.parts.position import ALiBi, Learned, RelativeBuckets, Rotary, Sinusoidal, rotate_halves, rotate_neighbours
from qkv.parts.programs import are_for
from qkv.parts.residual import Admin, DeepNorm, Parallel, PathDropout, PostNorm, PreNorm, ReZero
from qkv.parts.spec import Honoured, Known, anything
from qkv.parts.stack import Stack


def _is_usual(rule: Any) -> bool:
    return all(type(each) in (Causal, Everything, NotPadding, Window) for each in rules_of(rule))


def _is_named(activation: Any) -> bool:
    return activation in ACTIVATIONS.values()


def _turns(pairing: Any) -> bool:
    return pairing in (rotate_halves, rotate_neighbours)


# Parts whose step takes the same launches whatever the numbers are, and asks the host nothing.
_HEADS = "heads key_value_heads key_width value_width scale dropout project out"
KNOWN = Honoured(
    Known(nn.Dropout, "p inplace"), Known(nn.Identity), Known(nn.Linear, "weight bias"),
    Known(nn.ModuleList, "children"), Known(ALiBi, "slopes"), Known(Block, "children"),
    Known(Admin, "mixer norm dropout omega"), Known(DeepNorm, "mixer norm dropout alpha"),
    Known(Parallel, "norm mixers dropout"), Known(PathDropout, "rate"), Known(PostNorm, "mixer norm dropout"),
    Known(PreNorm, "norm mixer dropout path"), Known(ReZero, "mixer dropout alpha"),
    Known(Attention, f"{_HEADS} rotary query_norm key_norm", visibility=_is_usual),
    Known(CrossAttention, f"{_HEADS} query", visibility=_is_usual),
    Known(Embed, "tokens dropout segments norm project position"), Known(TokenEmbedding, "weight scale"),
    Known(MLP, "inner outer dropout", activation=_is_named),
    Known(GatedMLP, "inner outer dropout", activation=_is_named),
    Known(JoinedLinear, "width outputs biases weight bias"), Known(LayerNorm, "weight bias eps"),
    Known(RMSNorm, "weight epsilon"), Known(Learned, "weight first"), Known(LogitHead, "weight bias scale"),
    Known(TiedHead, "bias scale", _embedding=tuple), Known(RelativeBuckets, "buckets farthest looks_ahead weight"),
    Known(Rotary, "rates", pairing=_turns), Known(Sinusoidal, "width table", arrange=anything),
    Known(Stack, "blocks order dropout norm bias"),
)  # fmt: skip
FEWEST = 16  # tokens to be written from which on recording a step is worth its time
SLOTS = 64  # records are for a multiple of so many slots, and serve all that need fewer
SOURCES = 8  # and for a multiple of so many sources, from this number on
LONGEST_READ = 256  # tokens of a text up to which a GPU waits for the host that reads it
KEPT = 4  # records of a model; each holds a cache

_records: WeakKeyDictionary[nn.Module, OrderedDict[Shape, Recording]] = WeakKeyDictionary()


def standing(rows: Continuation, most: int, *, alone: bool = False) -> Continuation:
    """The same rows, carried on by a recorded step where that is possible and worth its time.

    `alone`: there is one, and no other will begin as it does.
    """
    if not are_for(rows.device) or most < FEWEST or why_not(rows.model) is not None:
        return rows
    return Standing(rows, alone=alone)


def why_not(model: nn.Module) -> str | None:
    """Why the steps of a model cannot be recorded; None: they can."""
    if torch.are_deterministic_algorithms_enabled() or torch.is_autocast_enabled("cuda"):
        return "Steps are recorded as they are without autocast, and not bit for bit alike."
    decoding = [getattr(model, name, None) for name in ("embed", "stack", "target", "decoder", "head")]
    if not any(each is not None for each in decoding):
        return f"A {type(model).__name__} has none of the parts that are known."
    refused = (KNOWN.refusal(each) for each in decoding if each is not None)
    why = next((why for why in refused if why is not None), None)
    if why is not None:
        return f"A recorded step does the same each time, and {why}."
    return None


class Standing(Continuation):
    """`rows` first; from the first single token on, a record that holds a place for each of them.

    A text that stands alone is read by a record too, if there is one from earlier and it is not long. Rows that leave
    keep their places, where they are carried on for nothing: a record of fewer rows would cost more.
    """

    def __init__(self, rows: Continuation, *, alone: bool = False) -> None:
        self.alone = alone
        self.rows: Continuation | None = rows  # until the record has taken over all that they have read
        self.model = rows.model
        self.vocabulary, self.device = rows.vocabulary, rows.device
        self._record: Recording | None = None
        self._places: list[int] = []  # of the rows that are left, in the record

    def begin(self) -> Tensor:
        assert self.rows is not None
        text = self.rows.only_text() if self.alone else None
        start = None if text is None or len(text) > LONGEST_READ else self.rows.standpoint()
        record = None if start is None else _kept(start, shape_of(start, 1))
        if text is None or record is None:
            return self.rows.begin()
        self._record, self._places, self.rows = record, [0], None
        return record.read(self.model, text)

    def advance(self, tokens: Tensor) -> Tensor:
        record = self._recorded(tokens)
        if record is None:
            assert self.rows is not None
            return self.rows.advance(tokens)
        self._give(record, tokens)
        record.step()
        assert record.logits is not None
        return record.logits[: len(tokens)] if self._in_order() else record.logits[self._places]

    def rounds(
        self, tokens: Tensor, most: int, forbidden: Tensor | None
    ) -> Iterator[tuple[list[int], list[float]]] | None:
        """The `most` likeliest tokens after these [r], step by step, with their log-probabilities.

        None: the host has to choose each.
        """
        record = self._recorded(tokens[:, None])
        if record is None:
            return None
        self._give(record, tokens[:, None])
        if forbidden is not None:
            record.forbidden.index_fill_(0, forbidden, True)
        places = self._places
        return (
            ([chosen[place] for place in places], [own[place] for place in places])
            for chosen, own in record.rounds(most)
        )

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        if self._record is None:
            assert self.rows is not None
            self.rows.select(rows, sources)
            return
        given, stay = [self._places[row] for row in rows.tolist()], self._places
        if sources is not None:
            beams = len(given) // len(sources)
            stay = [stay[source * beams + beam] for source in sources.tolist() for beam in range(beams)]
        assert len(given) == len(stay), "The rows of a record become fewer with their sources only."
        if given != stay:
            order = list(range(self._record.shape.rows))
            for place, origin in zip(stay, given, strict=True):
                order[place] = origin
            self._record.reorder(order)
        self._places = stay

    def close(self) -> None:
        """Others may use the record from now on."""
        record, self._record = self._record, None
        if record is not None:
            kept = _records.setdefault(self.model, OrderedDict())
            kept[record.shape] = record
            while len(kept) > KEPT:
                kept.popitem(last=False)

    def _in_order(self) -> bool:
        return self._places == list(range(len(self._places)))

    def _give(self, record: Recording, tokens: Tensor) -> None:
        """tokens [r 1]"""
        if self._in_order():
            record.tokens[: len(tokens)] = tokens
        else:
            record.tokens[torch.tensor(self._places, device=self.device)] = tokens

    def _recorded(self, tokens: Tensor) -> Recording | None:
        """The record for the rows as they now are; None where there can be none."""
        if self._record is not None:
            assert tokens.shape[1] == 1, "A record takes one token at a time."
            return self._record
        start = None if self.rows is None or tokens.shape[1] != 1 else self.rows.standpoint()
        if start is None:
            return None
        shape = shape_of(start, len(tokens))
        self._record = _taken(start, shape)
        self._record.fill(start)
        self._record.try_plan(start.model, start)
        self._places, self.rows = list(range(len(tokens))), None
        return self._record


def shape_of(start: Standpoint, rows: int) -> Shape:
    """What a record for so many rows is made for: somewhat more, so that it serves others too."""
    longest = longest_of(start.model)
    capacity = _rounded(start.cache.capacity, SLOTS)
    capacity = capacity if longest is None else min(capacity, longest)
    if start.memory is None:
        return Shape(rows if rows < SOURCES else _rounded(rows, SOURCES), capacity, 0, 0)
    states = start.memory.states
    sources = len(states) if len(states) < SOURCES else _rounded(len(states), SOURCES)
    return Shape(rows // len(states) * sources, capacity, sources, _rounded(states.shape[1], SLOTS))


def longest_of(model: TextModel | EncoderDecoder) -> int | None:
    """The most slots that its rows may have; None: any number."""
    if isinstance(model, TextModel):
        return model.longest
    position = model.target.position
    return len(position.weight) - position.first if isinstance(position, Learned) else None


def _rounded(number: int, step: int) -> int:
    return -(-number // step) * step


def _taken(start: Standpoint, shape: Shape) -> Recording:
    """A record nobody uses, kept from earlier or made now."""
    record = _kept(start, shape)
    return Recording(start.model, start, shape) if record is None else record


def _kept(start: Standpoint, shape: Shape) -> Recording | None:
    """A record nobody uses, kept from earlier."""
    record = _records.get(start.model, OrderedDict()).pop(shape, None)
    same = record is not None and record.weights == weights_of(start.model) and record.unchanged.holds()
    return record if same else None
