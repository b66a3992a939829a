"""Whether two runs of `qkv run --json` say the same: words in their places, and numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

WORDS = 0.8  # of the words of all answers, labels among them, that must be equal at least
APART = 0.1  # of the length of a line's numbers, how far those of the other may be from them
GIVEN = ("input", "file", "second", "context")  # what was asked, and no answer


class Likeness(NamedTuple):
    words: float  # the share that is equal; 1 where there are none
    apart: float  # of the line whose numbers lie furthest apart, and whose words are equal

    def __str__(self) -> str:
        return f"{self.words:.0%} of words equal, numbers {self.apart:.1%} apart"

    def is_enough(self, numbers: bool) -> bool:
        return self.words >= WORDS and (not numbers or self.apart <= APART)


def likeness(one: str, other: str) -> Likeness:
    """Of two outputs, line by line."""
    lines, theirs = ([json.loads(line) for line in each.splitlines()] for each in (one, other))
    if len(lines) != len(theirs) or not lines:
        return Likeness(0.0, 1.0)
    equal, several, apart = 0, 0, 0.0
    for line, their in zip(lines, theirs, strict=True):
        (words, numbers), (their_words, their_numbers) = _taken(line), _taken(their)
        several += max(len(words), len(their_words))
        same = sum(a == b for a, b in zip(words, their_words, strict=False))
        equal += same
        if words == their_words:
            apart = max(apart, _apart(numbers, their_numbers))
    return Likeness(equal / several if several else 1.0, apart)


def _taken(answer: Any) -> tuple[list[str], list[float]]:
    words: list[str] = []
    numbers: list[float] = []
    for leaf in _leaves(answer):
        if isinstance(leaf, str):
            words += leaf.split()
        elif leaf is not None and not isinstance(leaf, bool):
            numbers.append(float(leaf))
    return words, numbers


def _leaves(answer: Any) -> Iterator[Any]:
    if isinstance(answer, dict):
        for name, value in answer.items():
            if name not in GIVEN:
                yield from _leaves(value)
    elif isinstance(answer, list):
        for value in answer:
            yield from _leaves(value)
    else:
        yield answer


def _apart(one: list[float], other: list[float]) -> float:
    if len(one) != len(other):
        return 1.0
    length = sum(each**2 for each in other) ** 0.5
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5 / (length or 1.0)
