"""Attention maps as plain arrays with labels: what is drawn, apart from how it was recorded and how it is drawn.

h heads, q queries (rows), k keys (columns).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from qkv.errors import QkvError
from qkv.look.table import notebook_html


class Kind(StrEnum):
    """Who looks at whom, in the order in which maps are shown: the most telling first."""

    CROSS = "cross"
    ENCODER = "encoder self"
    DECODER = "decoder self"
    TEXT = "self"  # of a model with one stack

    @property
    def heading(self) -> str:
        return _HEADINGS[self]


_HEADINGS = {
    Kind.CROSS: "Output looks at input",
    Kind.ENCODER: "Input looks at itself",
    Kind.DECODER: "Output looks at itself",
    Kind.TEXT: "Text looks at itself",
}


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """The weights of one attention layer for one input: weights[head, query, key], each row a distribution.

    A row of the decoder is named by the token it *writes*: the row that writes y_i is fed y_{i-1}, and its weights say
    what was looked at in order to write y_i.
    """

    name: str  # the module that wrote it, for example decoder.blocks.0.cross.mixer
    kind: Kind
    weights: np.ndarray  # [h q k] float32
    queries: tuple[str, ...]  # row labels, q of them
    keys: tuple[str, ...]  # column labels, k of them

    def __post_init__(self) -> None:
        if self.weights.ndim != 3 or self.weights.shape[1:] != (len(self.queries), len(self.keys)):
            raise QkvError(
                f"The weights of {self.name} have shape {list(self.weights.shape)}; "
                f"[heads, {len(self.queries)} queries, {len(self.keys)} keys] is needed."
            )

    @property
    def heads(self) -> int:
        return self.weights.shape[0]

    def average(self) -> np.ndarray:
        """The mean over heads. [q k]"""
        return self.weights.mean(axis=0)

    def cropped(self, limit: int) -> AttentionMap:
        """The first `limit` queries and keys: what fits on a page. Its rows may sum to less than one."""
        weights = self.weights[:, :limit, :limit]
        return AttentionMap(self.name, self.kind, weights, self.queries[:limit], self.keys[:limit])

    def crop_note(self, limit: int) -> str:
        """One sentence that says what `cropped(limit)` leaves out; empty when it leaves out nothing."""
        rows, columns = len(self.queries), len(self.keys)
        if rows <= limit and columns <= limit:
            return ""
        return (
            f"Too large to draw whole: the first {min(rows, limit)} of {rows} rows and "
            f"{min(columns, limit)} of {columns} columns are shown, so that a row may sum to less than one."
        )

    def __repr__(self) -> str:
        return f"AttentionMap({self.name!r}, {self.kind}, {self.heads} heads, {len(self.queries)}×{len(self.keys)})"


@dataclass(frozen=True, eq=False, repr=False)
class AttentionRecord:
    """Every attention map of one input and its output, in the order in which the model used them."""

    source: str  # the input, as text
    target: str  # the output, as text; empty where the model only reads
    maps: tuple[AttentionMap, ...]

    def __post_init__(self) -> None:
        if not self.maps:
            raise QkvError("An attention record needs at least one attention map, and this one was given none.")

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of map there are, the most telling first."""
        present = {each.kind for each in self.maps}
        return tuple(kind for kind in Kind if kind in present)

    def of(self, kind: Kind) -> tuple[AttentionMap, ...]:
        """The maps of one kind, first layer first."""
        return tuple(each for each in self.maps if each.kind is kind)

    def average(self, kind: Kind | None = None) -> AttentionMap:
        """One map of one head: the mean over layers and heads of a kind, by default of the most telling kind."""
        kind = kind or self.kinds[0]
        maps = self.of(kind)
        if not maps:
            raise QkvError(f"This record has no {kind} attention; it has {' and '.join(self.kinds)}.")
        weights = np.mean([each.average() for each in maps], axis=0, keepdims=True)  # [1 q k]
        return AttentionMap(average_name(maps), kind, weights, maps[0].queries, maps[0].keys)

    def __repr__(self) -> str:
        written = f" -> {_shortened(self.target)!r}" if self.target else ""
        lines = [f"AttentionRecord: {_shortened(self.source)!r}{written}"]
        for kind in self.kinds:
            maps = self.of(kind)
            shape = f"{len(maps[0].queries)} queries × {len(maps[0].keys)} keys"
            lines.append(f"  {kind:<12}  {_layers_and_heads(maps)}, {shape}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The average of the most telling kind, for a notebook."""
        drawn = self.average()
        texts = f"{self.source} → {self.target}" if self.target else self.source
        caption = f"{texts} · {drawn.kind.heading.lower()}, {drawn.name}"
        shown = drawn.cropped(NOTEBOOK_LIMIT)
        return notebook_html(shown.average(), shown.queries, shown.keys, caption, drawn.crop_note(NOTEBOOK_LIMIT))


NOTEBOOK_LIMIT = 40  # rows and columns of a map in a notebook cell


def average_name(maps: tuple[AttentionMap, ...]) -> str:
    """What an average over these maps is called."""
    if len(maps) == 1 and maps[0].heads == 1:
        return "the only head"
    return f"average of {_layers_and_heads(maps)}"


def _layers_and_heads(maps: tuple[AttentionMap, ...]) -> str:
    """For example: 3 layers × 4 heads."""
    heads = sorted({each.heads for each in maps})
    counted = f"{'/'.join(map(str, heads))} {'head' if heads == [1] else 'heads'}"
    return f"{len(maps)} {'layer' if len(maps) == 1 else 'layers'} × {counted}"


def _shortened(text: str, width: int = 48) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
