"""ROUGE: how much of a reference a summary says, in words, pairs of words and in their order. [lin2004]

Words are runs of letters and digits in small letters, without stemming. Everywhere the F1 is meant, from 0 to 1, the
mean over summaries, each against the nearest of its references.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence

from qkv.train.metrics import References, matched

WORD = re.compile(r"[^\W_]+")
Score = Callable[[str, str], float]


def rouge_n(hypotheses: Sequence[str], references: References, n: int) -> float:
    """ROUGE-N: shared stretches of n words [lin2004 §2]."""
    return _mean_of_best(hypotheses, references, lambda said, right: _stretches_f1(words(said), words(right), n))


def rouge_l(hypotheses: Sequence[str], references: References) -> float:
    """ROUGE-L: words in common in the same order, with gaps [lin2004 §3.1]."""

    def score(said: str, right: str) -> float:
        mine, theirs = words(said), words(right)
        return _f1(longest_common(mine, theirs), len(mine), len(theirs))

    return _mean_of_best(hypotheses, references, score)


def rouge_l_of_sentences(hypotheses: Sequence[str], references: References) -> float:
    """ROUGE-L of summaries, line by line: for each line of a reference the words that any line says in order
    [lin2004 §3.2]."""

    def score(said: str, right: str) -> float:
        mine = [words(line) for line in said.split("\n")]
        theirs = [words(line) for line in right.split("\n")]
        left = Counter(word for line in mine for word in line)
        hits = 0
        for line in theirs:
            union = sorted({place for other in mine for place in common_places(line, other)})
            for place in union:
                # A word that was said once can match once only.
                if left[line[place]] > 0:
                    left[line[place]] -= 1
                    hits += 1
        return _f1(hits, sum(map(len, mine)), sum(map(len, theirs)))

    return _mean_of_best(hypotheses, references, score)


def words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def longest_common(first: Sequence[str], second: Sequence[str]) -> int:
    """The length of the longest sequence of words that both hold in order, bit-parallel as in [hyyro2003].

    A column of the table rises by 0 or 1 from row to row, so it fits into one integer, a bit a row.
    """
    every_row = (1 << len(first)) - 1
    rows_of: dict[str, int] = {}
    for row, word in enumerate(first):
        rows_of[word] = rows_of.get(word, 0) | 1 << row
    flat = every_row  # rows where the column does not rise
    for word in second:
        match = flat & rows_of.get(word, 0)
        flat = ((flat + match) | (flat - match)) & every_row
    return len(first) - flat.bit_count()


def common_places(first: Sequence[str], second: Sequence[str]) -> list[int]:
    """Where in `first` the words of a longest common sequence stand."""
    table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, word in enumerate(first, start=1):
        for j, other in enumerate(second, start=1):
            table[i][j] = table[i - 1][j - 1] + 1 if word == other else max(table[i - 1][j], table[i][j - 1])
    places = []
    i, j = len(first), len(second)
    while i and j:
        if first[i - 1] == second[j - 1]:
            places.append(i - 1)
            i, j = i - 1, j - 1
        elif table[i][j - 1] > table[i - 1][j]:
            j -= 1
        else:
            i -= 1
    return places[::-1]


def _stretches_f1(said: list[str], right: list[str], n: int) -> float:
    mine, theirs = (Counter(zip(*(text[i:] for i in range(n)), strict=False)) for text in (said, right))
    return _f1((mine & theirs).total(), mine.total(), theirs.total())


def _f1(hits: int, said: int, right: int) -> float:
    return 2 * hits / (said + right) if said and right else 0.0


def _mean_of_best(hypotheses: Sequence[str], references: References, score: Score) -> float:
    scores = [max(score(said, one) for one in ones) for said, ones in matched(hypotheses, references)]
    return sum(scores) / len(scores)
