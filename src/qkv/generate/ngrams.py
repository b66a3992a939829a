"""How likely a word is after those before it, counted from texts: a small language model for a beam search."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable

from qkv.errors import QkvError

BEGIN = "<s>"  # stands before the first word of a text


class WordNGrams:
    """n-grams of words with interpolated Kneser-Ney smoothing. [chen1999]

    Seen after its history a word keeps its count less a discount. What the discounts free goes to the word after a
    shorter history, where it counts after how many different words it was seen: "Francisco" is frequent, but after
    "San" alone. In the end all words are equally likely, and so is one that was never seen.
    """

    def __init__(
        self, texts: Iterable[str], order: int = 3, discount: float = 0.75, *, lowercase: bool = False
    ) -> None:
        if order < 1 or not 0 < discount < 1:
            raise QkvError(f"n-grams have 1 word at least and a discount between 0 and 1, not {order} and {discount}.")
        self.order, self.discount, self.lowercase = order, discount, lowercase
        longest: Counter[tuple[str, ...]] = Counter()
        words: set[str] = set()
        for text in texts:
            spelled = self._words(text)
            words.update(spelled)
            row = [BEGIN] * (order - 1) + spelled
            longest.update(tuple(row[at : at + order]) for at in range(len(spelled)))
        if not words:
            raise QkvError("n-grams are counted from texts, and there is not one word.")
        self.vocabulary = frozenset(words)
        self._counts: list[dict[tuple[str, ...], int]] = [{} for _ in range(order)]  # by length - 1
        self._counts[-1] = dict(longest)
        for length in range(order - 1, 0, -1):
            self._counts[length - 1] = dict(
                Counter(gram[1:] for gram in self._counts[length])
            )  # different words before
        self._totals: list[dict[tuple[str, ...], int]] = []
        self._followers: list[dict[tuple[str, ...], int]] = []
        for counts in self._counts:
            totals: dict[tuple[str, ...], int] = defaultdict(int)
            for gram, count in counts.items():
                totals[gram[:-1]] += count
            self._totals.append(dict(totals))
            self._followers.append(dict(Counter(gram[:-1] for gram in counts)))

    def __call__(self, before: str, word: str) -> float:
        """The log-probability of a word after some words, both as text: what `qkv.generate.ctc.Beam` asks."""
        history = ([BEGIN] * (self.order - 1) + self._words(before))[-(self.order - 1) :] if self.order > 1 else []
        word = word.lower() if self.lowercase else word
        return math.log(self._probability(tuple(history), word))

    def _words(self, text: str) -> list[str]:
        return (text.lower() if self.lowercase else text).split()

    def _probability(self, history: tuple[str, ...], word: str) -> float:
        length = len(history)
        total = self._totals[length].get(history, 0)
        less = self._probability(history[1:], word) if history else 1 / (len(self.vocabulary) + 1)
        if not total:
            return less
        kept = max(self._counts[length].get((*history, word), 0) - self.discount, 0.0)
        return (kept + self.discount * self._followers[length][history] * less) / total
