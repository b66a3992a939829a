"""Who may see whom: visibility rules as values.

A rule is a small hashable value; rules compose with `&`, `|` and `~`. A rule looks at three things of a token only: its
`index` in the row, its `document` number (0 is padding), and whether it is marked. So the same rule can fill a dense
table, run inside a block-sparse kernel, or be recognised as a flag. True always means "may attend".

Shapes: b rows, q queries, k keys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.parts.attention.tokens import Sight as Sight
from qkv.parts.attention.tokens import Tokens as Tokens

Lowered = TypeVar("Lowered")


class Rule(ABC):
    """A visibility rule. Subclasses are frozen dataclasses and say, token by token, who sees whom."""

    reads_query = True  # False: all queries see the same keys

    @abstractmethod
    def sees(self, query: Sight, key: Sight) -> Tensor:
        """Whether the query may attend to the key, for all of them at once."""

    def __and__(self, other: Rule) -> Rule:
        if isinstance(self, Everything):
            return other
        return self if isinstance(other, Everything) or other == self else Both(self, other)

    def __or__(self, other: Rule) -> Rule:
        return Either(self, other)

    def __invert__(self) -> Rule:
        return Not(self)


@dataclass(frozen=True)
class Everything(Rule):
    """Every query sees every key."""

    reads_query = False

    def sees(self, query: Sight, key: Sight) -> Tensor:
        return torch.ones_like(query.index + key.index, dtype=torch.bool)


@dataclass(frozen=True)
class Causal(Rule):
    """No look-ahead: a token sees itself and what came before. [vaswani2017 §3.2.3]"""

    def sees(self, query: Sight, key: Sight) -> Tensor:
        return key.index <= query.index


@dataclass(frozen=True)
class Window(Rule):
    """The keys fewer than `size` slots away, at every `step`-th slot (step > 1 dilates). [beltagy2020 §3.1]"""

    size: int
    step: int = 1

    def sees(self, query: Sight, key: Sight) -> Tensor:
        distance = (query.index - key.index).abs()
        near = distance < self.size * self.step
        return near if self.step == 1 else near & (distance % self.step == 0)


@dataclass(frozen=True)
class Strided(Rule):
    """Every `stride`-th key, counted from the query. With a window it is the strided pattern. [child2019 §4.3]"""

    stride: int

    def sees(self, query: Sight, key: Sight) -> Tensor:
        return (query.index - key.index) % self.stride == 0


@dataclass(frozen=True)
class Fixed(Rule):
    """The own block of `stride` slots, and the last `summary` slots of every block. [child2019 §4.3]"""

    stride: int
    summary: int

    def sees(self, query: Sight, key: Sight) -> Tensor:
        same_block = query.index // self.stride == key.index // self.stride
        return same_block | (key.index % self.stride >= self.stride - self.summary)


@dataclass(frozen=True)
class Chunks(Rule):
    """The own chunk of `size` slots, so many `before` it and so many `after` it: Reformer's other half. [kitaev2020]"""

    size: int
    before: int = 1
    after: int = 0

    def sees(self, query: Sight, key: Sight) -> Tensor:
        back = query.index // self.size - key.index // self.size
        return (back <= self.before) & (-back <= self.after)


@dataclass(frozen=True)
class GlobalTokens(Rule):
    """The first `count` tokens see everyone and are seen by everyone. [beltagy2020 §3.1]"""

    count: int

    def sees(self, query: Sight, key: Sight) -> Tensor:
        return (query.index < self.count) | (key.index < self.count)


@dataclass(frozen=True)
class Marked(Rule):
    """Tokens that a batch marks, as of a question, see everyone and are seen by everyone. [beltagy2020 §3.1]"""

    def sees(self, query: Sight, key: Sight) -> Tensor:
        seen = torch.zeros_like(query.index + key.index, dtype=torch.bool)
        for side in (query, key):
            seen = seen if side.marked is None else seen | side.marked
        return seen


@dataclass(frozen=True)
class NotPadding(Rule):
    """Keys that are padding are seen by no one."""

    reads_query = False

    def sees(self, query: Sight, key: Sight) -> Tensor:
        if key.document is None:
            return torch.ones_like(query.index + key.index, dtype=torch.bool)
        return key.document + torch.zeros_like(query.index) > 0  # broadcast_shapes would import a computer algebra


@dataclass(frozen=True)
class SameDocument(Rule):
    """In a row packed with several documents, tokens see their own document only, and never padding."""

    def sees(self, query: Sight, key: Sight) -> Tensor:
        if query.document is None or key.document is None:
            raise QkvError("SameDocument needs document numbers for queries and keys: give Tokens(documents=...).")
        return (query.document == key.document) & (key.document > 0)


@dataclass(frozen=True)
class _Pair(Rule):
    """Two rules, of which one is made."""

    first: Rule
    second: Rule

    @property
    def reads_query(self) -> bool:  # type: ignore[override]
        return self.first.reads_query or self.second.reads_query


class Both(_Pair):
    """`first & second`"""

    def sees(self, query: Sight, key: Sight) -> Tensor:
        return self.first.sees(query, key) & self.second.sees(query, key)


class Either(_Pair):
    """`first | second`"""

    def sees(self, query: Sight, key: Sight) -> Tensor:
        return self.first.sees(query, key) | self.second.sees(query, key)


@dataclass(frozen=True)
class Not(Rule):
    """`~rule`"""

    rule: Rule

    @property
    def reads_query(self) -> bool:  # type: ignore[override]
        return self.rule.reads_query

    def sees(self, query: Sight, key: Sight) -> Tensor:
        return ~self.rule.sees(query, key)


class Mask:
    """A rule bound to the tokens of one attention, with the forms a kernel may lower it to."""

    def __init__(self, rule: Rule, query: Tokens, key: Tokens, device: torch.device | str) -> None:
        self.rule, self.query, self.key, self.device = rule, query, key, device
        self._dense: Tensor | None = None  # tables made so far, shared by all layers
        self._sees_something: Tensor | None = None
        self._without_empty_rows: Tensor | None = None
        self._added_to: tuple[Tensor, Tensor] | None = None  # a bias, and the table of both
        self._lowered: dict[str, Any] = {}

    def lowered(self, form: str, make: Callable[[], Lowered]) -> Lowered:
        """What a kernel has made of this mask, made once for all layers that share it."""
        if form not in self._lowered:
            self._lowered[form] = make()
        return self._lowered[form]

    def must_fit(self, q: Tensor, k: Tensor) -> None:
        """A mask made for other tokens than these queries [b h q d] and keys [b g k d] would hide the wrong ones."""
        if (self.query.size, self.key.size) != (q.shape[2], k.shape[2]):
            raise QkvError(
                f"The mask is for {self.query.size} queries and {self.key.size} keys, but there are {q.shape[2]} and "
                f"{k.shape[2]}: the context's tokens must be those of the stream."
            )

    @property
    def flag(self) -> Literal["all", "causal"] | None:
        """The mask as a flag, when it is one: no mask at all, or a plain look-ahead mask over equal sides."""
        rule, query, key = self.rule, self.query, self.key
        if isinstance(rule, Everything) or (isinstance(rule, NotPadding) and key.documents is None):
            return "all"
        if isinstance(rule, Both) and isinstance(rule.second, NotPadding) and key.documents is None:
            rule = rule.first
        if isinstance(rule, Causal):
            if query.start >= key.start + key.size - 1:  # a cached step: all keys lie in the past
                return "all"
            if query.start == key.start and query.size == key.size:
                return "causal"
        return None

    @property
    def dense(self) -> Tensor:
        """The whole table as booleans. [b 1 q k], b and q being 1 where all rows or queries agree."""
        if self._dense is None:
            query, key = self.query.sight(self.device, dim=2), self.key.sight(self.device, dim=1)
            if not self.rule.reads_query:
                query = Sight(query.index[:, :1], None)
            self._dense = self.rule.sees(query, key)[:, None]
        return self._dense

    @property
    def sees_something(self) -> Tensor:
        """Queries that see at least one key; the others get zeros. [b 1 q 1]"""
        if self._sees_something is None:
            self._sees_something = self.dense.any(-1, keepdim=True)
        return self._sees_something

    @property
    def without_empty_rows(self) -> Tensor:
        """The table with all keys shown to a query that sees none: its softmax exists then, and is made zero."""
        if self._without_empty_rows is None:
            self._without_empty_rows = self.dense | ~self.sees_something
        return self._without_empty_rows

    def added_to(self, bias: Tensor) -> Tensor:
        """The bias with −∞ where a query may not look, as in `without_empty_rows`: one table for all layers that share
        a bias. [b h q k]"""
        if self._added_to is None or self._added_to[0] is not bias:
            self._added_to = bias, bias.masked_fill(~self.without_empty_rows, -torch.inf)
        return self._added_to[1]
