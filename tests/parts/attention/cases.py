"""Situations that every attention must master: visibility rules, padded and packed rows, awkward lengths.

Each rule comes with a `sees` of its own, written for two single tokens in plain Python, so that tables and kernels are
compared with something that shares no line with the library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.parts.attention.visibility import (
    Causal,
    Chunks,
    Everything,
    Fixed,
    GlobalTokens,
    Marked,
    Mask,
    NotPadding,
    Rule,
    SameDocument,
    Strided,
    Tokens,
    Window,
)


@dataclass(frozen=True)
class Token:
    """A token as a rule may know it."""

    index: int
    document: int
    marked: bool = False


@dataclass(frozen=True)
class Situation:
    rule: Rule
    sees: Callable[[Token, Token], bool]  # (query, key)
    rows: str | None = None  # how the rows are filled; None: completely, by one document
    marked: bool = False  # whether some tokens are marked


SITUATIONS = {
    "everything": Situation(Everything(), lambda q, k: True),
    "nothing": Situation(~Everything(), lambda q, k: False),
    "causal": Situation(Causal(), lambda q, k: k.index <= q.index),
    "window": Situation(Window(3), lambda q, k: -3 < k.index - q.index < 3),
    "dilated window": Situation(Window(3, step=2), lambda q, k: k.index - q.index in (-4, -2, 0, 2, 4)),
    "strided": Situation(Strided(4), lambda q, k: (k.index - q.index) % 4 == 0),
    "fixed": Situation(Fixed(4, 1), lambda q, k: k.index // 4 == q.index // 4 or k.index % 4 == 3),
    "chunks": Situation(Chunks(4, 1, 2), lambda q, k: k.index // 4 in range(q.index // 4 - 1, q.index // 4 + 3)),
    "reformer": Situation(
        Causal() & Chunks(4), lambda q, k: k.index <= q.index and q.index // 4 - k.index // 4 in (0, 1)
    ),
    "global tokens": Situation(GlobalTokens(2), lambda q, k: min(q.index, k.index) < 2),
    "longformer": Situation(
        Window(3) | GlobalTokens(1), lambda q, k: abs(k.index - q.index) < 3 or min(q.index, k.index) < 1
    ),
    "marked": Situation(Marked(), lambda q, k: q.marked or k.marked, marked=True),
    "marked, padded left": Situation(
        (Window(3) | Marked()) & NotPadding(),
        lambda q, k: k.document > 0 and (abs(k.index - q.index) < 3 or q.marked or k.marked),
        "left",
        marked=True,
    ),
    "sparse transformer": Situation(
        Causal() & (Window(2) | Strided(3)),
        lambda q, k: k.index <= q.index and (q.index - k.index < 2 or (q.index - k.index) % 3 == 0),
    ),
    "all but the near past": Situation(  # the first queries see nothing
        Causal() & ~Window(4), lambda q, k: k.index <= q.index - 4
    ),
    "padded right": Situation(NotPadding(), lambda q, k: k.document > 0, "right"),
    "padded left": Situation(NotPadding(), lambda q, k: k.document > 0, "left"),
    "causal, padded right": Situation(
        Causal() & NotPadding(), lambda q, k: k.index <= q.index and k.document > 0, "right"
    ),
    "causal, padded left": Situation(  # the padding queries see nothing
        Causal() & NotPadding(), lambda q, k: k.index <= q.index and k.document > 0, "left"
    ),
    "packed": Situation(SameDocument(), lambda q, k: q.document == k.document > 0, "packed"),
    "packed, causal window": Situation(
        Causal() & Window(3) & SameDocument(),
        lambda q, k: q.document == k.document > 0 and 0 <= q.index - k.index < 3,
        "packed",
    ),
}

LENGTHS = (1, 2, 9, 33, 65, 130)
ROWS = 3


def documents(rows: str | None, size: int) -> Tensor | None:
    """Document numbers of three rows: one full, one filled in part, one of padding alone. [3 size]"""
    if rows is None:
        return None
    lengths = torch.tensor([size, (size + 1) // 2, 0])
    slots = torch.arange(size)
    match rows:
        case "right":
            return (slots < lengths[:, None]).long()
        case "left":
            return (slots >= size - lengths[:, None]).long()
        case "packed":  # documents of 4 slots each, the last one cut off
            return torch.where(slots < lengths[:, None], slots // 4 + 1, 0)
    raise ValueError(rows)


def marks(size: int) -> Tensor:
    """No token of the first row, every fifth of the second from its third slot on, the last of the third. [3 size]"""
    slots = torch.arange(size)
    return torch.stack((slots < 0, slots % 5 == 2, slots == size - 1))


def tokens(rows: str | None, size: int, device: str = "cpu", marked: bool = False) -> Tokens:
    numbers = documents(rows, size)
    return Tokens(
        size,
        documents=None if numbers is None else numbers.to(device),
        marks=marks(size).to(device) if marked else None,
    )


def mask(situation: Situation, size: int, device: str = "cpu") -> Mask:
    side = tokens(situation.rows, size, device, situation.marked)
    return Mask(situation.rule, side, side, device)


def single_tokens(side: Tokens, row: int) -> list[Token]:
    numbers = [1] * side.size if side.documents is None else side.documents[row].tolist()
    marked = [False] * side.size if side.marks is None else side.marks[row].tolist()
    return [Token(side.start + slot, *known) for slot, known in enumerate(zip(numbers, marked, strict=True))]


def table(situation: Situation, query: Tokens, key: Tokens) -> Tensor:
    """Who sees whom, token by token. [3 q k]"""
    return torch.tensor(
        [
            [[situation.sees(q, k) for k in single_tokens(key, row)] for q in single_tokens(query, row)]
            for row in range(ROWS)
        ]
    )
