"""How good answers to questions are: exact match and F1 over words. [rajpurkar2016 §6.1]

An answer counts against the best of several right ones. A question without any has the answer "". [rajpurkar2018]
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

from qkv.errors import QkvError

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def exact_match(said: Sequence[str], right: Sequence[Sequence[str]]) -> float:
    """The share of answers that equal a right one, but for case, punctuation, articles and spaces."""
    scores = [
        max(float(normalised(answer) == normalised(one)) for one in ones) for answer, ones in _matched(said, right)
    ]
    return sum(scores) / len(scores)


def answer_f1(said: Sequence[str], right: Sequence[Sequence[str]]) -> float:
    """The mean over questions of the F1 of the words that an answer shares with the nearest right one."""
    scores = [max(word_f1(answer, one) for one in ones) for answer, ones in _matched(said, right)]
    return sum(scores) / len(scores)


def word_f1(said: str, right: str) -> float:
    """2·shared / (words said + words right); without an answer on either side, whether there is none on both."""
    mine, theirs = normalised(said).split(), normalised(right).split()
    if not mine or not theirs:
        return float(mine == theirs)
    shared = (Counter(mine) & Counter(theirs)).total()
    return 2 * shared / (len(mine) + len(theirs))


def normalised(text: str) -> str:
    """In small letters, without punctuation and English articles, one space between words."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def _matched(said: Sequence[str], right: Sequence[Sequence[str]]) -> list[tuple[str, list[str]]]:
    if len(said) != len(right) or not right:
        raise QkvError(f"A score needs right answers for each question, but there are {len(said)} and {len(right)}.")
    # Right answers that normalise to nothing ("the") are none; without any there is no answer.
    kept = [[one for one in ones if normalised(one)] or [""] for ones in right]
    return list(zip(said, kept, strict=True))
