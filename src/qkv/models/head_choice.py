"""Which head a model gets: the question it answers, and the names of the answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from qkv.errors import QkvError
from qkv.parts.heads import ClassificationHead, PooledHead, States, TokenHead
from qkv.parts.pool import FirstToken, LastToken, MeanOfTokens, UnitLength

KINDS = {
    "language": "the next token",
    "masked": "what a hidden token was, or of what colour a hidden patch",
    "pretraining": "what a hidden token or frame was, and of texts whether two segments belong together",
    "ctc": "which letter is heard in a frame, or none",
    "states": "the stream itself",
    "pooled": "the stream itself, and one vector a row beside it",
    "classification": "one label a text or a picture",
    "distilled": "one label a picture, by the class token and by what a teacher taught",
    "tokens": "one label a token",
    "spans": "where an answer begins and ends",
    "detection": "the class and the box of each object",
    "keypoints": "a map of where each of the named points is",
    "embedding": "one vector a text or a picture",
    "projection": "one vector, in a space that texts and pictures share",
}
Pools = Mapping[str, Callable[[], nn.Module]]
POOLS: Pools = {"mean": MeanOfTokens, "first": FirstToken, "last": LastToken}
WITH_LABELS = ("classification", "distilled", "tokens", "detection", "keypoints")


@dataclass(frozen=True)
class HeadChoice:
    """A head by its kind, with what it needs to know."""

    kind: str
    labels: tuple[str, ...] = ()  # of heads that decide, in the order of the logits
    pooling: str | None = None  # of embedding: mean, first or last
    unit_length: bool = False  # of embedding: vectors scaled to length 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise QkvError(f"There is no head called {self.kind!r}: the heads are {', '.join(KINDS)}.")
        if bool(self.labels) != (self.kind in WITH_LABELS):
            raise QkvError(f"A {self.kind} head {'needs' if self.kind in WITH_LABELS else 'has no'} labels.")
        if (self.pooling in POOLS) != (self.kind == "embedding"):
            raise QkvError(f"The pooling of an embedding head is one of {', '.join(POOLS)}, and others have none.")
        if self.unit_length and self.kind != "embedding":
            raise QkvError("Only the vectors of an embedding head are scaled to unit length.")

    def config(self) -> dict[str, Any]:
        """As `config.json` holds it: what is not said is as it is by default."""
        config: dict[str, Any] = {"kind": self.kind}
        if self.labels:
            config["labels"] = list(self.labels)
        if self.pooling is not None:
            config |= {"pooling": self.pooling, "unit_length": self.unit_length}
        return config

    @classmethod
    def from_config(cls, config: object) -> HeadChoice:
        known = {"kind", "labels", "pooling", "unit_length"}
        if not isinstance(config, dict) or not {"kind"} <= config.keys() <= known:
            raise QkvError(f'"head" must be an object with "kind" and at most {", ".join(sorted(known))}.')
        labels = config.get("labels", [])
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            raise QkvError('The "labels" of "head" must be a list of names.')
        return cls(str(config["kind"]), tuple(labels), config.get("pooling"), bool(config.get("unit_length", False)))


def make_head(
    choice: HeadChoice,
    width: int,
    own: Mapping[str, Callable[[], nn.Module]],
    *,
    pool: Callable[[], nn.Module],
    dropout: float = 0.0,
    bias: bool = True,
    kinds: Collection[str] = (),
    pools: Pools = POOLS,
) -> nn.Module:
    """The head of a choice: one of the family's `own`, or one that is made alike for all families.

    `pool`, `dropout` and `bias` are how the family decides about a whole row, `pools` how it can make it one vector.
    With `kinds`, those are all that the family has.
    """
    alike: dict[str, Callable[[], nn.Module]] = {
        "states": States,
        "classification": lambda: ClassificationHead(pool(), width, len(choice.labels), dropout, bias),
        "tokens": lambda: TokenHead(width, len(choice.labels), dropout),
        "spans": lambda: TokenHead(width, 2),
        "embedding": lambda: _embedding(choice, pools),
    }
    heads = {**alike, **own}
    kinds = kinds or heads
    if choice.kind not in kinds:
        raise QkvError(f"This family has no {choice.kind} head: it has {', '.join(kinds)}.")
    return heads[choice.kind]()


def _embedding(choice: HeadChoice, pools: Pools) -> PooledHead:
    if choice.pooling not in pools:
        raise QkvError(f"This model makes one vector of a row by {' or '.join(pools)}, not by {choice.pooling}.")
    pooled = pools[str(choice.pooling)]()
    return PooledHead(UnitLength(pooled) if choice.unit_length else pooled)
