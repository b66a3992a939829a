"""T5's own task: stretches of a text are cut out, and a model writes them down. [raffel2020 §3.1.4]

source: Thank you <X> me to your party <Y> week .
target: <X> for inviting <Y> last <Z>
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qkv.data.pairs import Pairs
from qkv.data.token_rows import TokenRows
from qkv.errors import QkvError


@dataclass(frozen=True)
class SpanCorruption:
    """A function from epoch to `Pairs`: the same texts, each time with other stretches cut out.

    `rate` of the tokens go, in stretches of `mean` tokens on average [raffel2020 §3.3.4]. Each leaves a sentinel, the
    first of the row `sentinels[0]`, and in the target stands behind the same; a further sentinel ends the target.
    """

    texts: TokenRows  # without special tokens
    sentinels: Sequence[int]
    end: int
    start: int  # what a decoder begins with; T5's is the padding
    rate: float = 0.15
    mean: float = 3.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_spans(self.rate, self.mean)
        longest = int(self.texts.lengths.max()) if len(self.texts) else 0
        if (needed := spans_of(longest, self.rate, self.mean)[1] + 1) > len(self.sentinels):
            raise QkvError(
                f"A text of {longest} tokens needs {needed} sentinels, but there are {len(self.sentinels)}: cut the "
                "texts shorter, or give more."
            )

    def __call__(self, epoch: int) -> Pairs:
        sources, targets = [], []
        generator = np.random.default_rng([self.seed, epoch])
        for row in range(len(self.texts)):
            source, target = corrupted(self.texts[row], self.sentinels, generator, self.rate, self.mean)
            sources.append(source)
            targets.append(target)
        pad = self.texts.pad
        return Pairs.from_ids(sources, targets, source_ends=(pad, self.end), target_ends=(pad, self.start, self.end))


def corrupted(
    ids: Sequence[int], sentinels: Sequence[int], generator: np.random.Generator, rate: float, mean: float
) -> tuple[list[int], list[int]]:
    """A text without some stretches, and these stretches; each as long as chance has it, none beside another."""
    lost, count = spans_of(len(ids), rate, mean)
    if count == 0:
        return list(ids), [sentinels[0]]
    gone = _divided(lost, count, generator)
    # Between two stretches at least one token stays; before the first and after the last there may be none.
    kept = _divided(len(ids) - lost + 2, count + 1, generator)
    kept[0] -= 1
    kept[-1] -= 1
    source: list[int] = []
    target: list[int] = []
    at = 0
    for sentinel, stays, goes in zip(sentinels, kept, [*gone, 0], strict=False):
        source += ids[at : at + stays]
        at += stays
        target.append(sentinel)
        if goes:
            source.append(sentinel)
            target += ids[at : at + goes]
            at += goes
    return source, target


def spans_of(length: int, rate: float, mean: float) -> tuple[int, int]:
    """How many tokens of a text are cut out, and in how many stretches; a text of one token stays whole."""
    if length < 2:
        return 0, 0
    lost = min(max(1, round(length * rate)), length - 1)
    count = min(max(1, round(lost / mean)), lost, length - lost + 1)
    return lost, count


def check_spans(rate: float, mean: float) -> None:
    if not 0 < rate < 1:
        raise QkvError(f"The share of tokens to cut out must lie between 0 and 1, but is {rate}.")
    if not 1 <= mean < math.inf:
        raise QkvError(f"Stretches cannot be {mean} tokens long on average: at least 1.")


def whole_length(length: int, rate: float = 0.15, mean: float = 3.0) -> int:
    """How long a text may be so that its source, with sentinels and the end, has at most `length` tokens."""
    check_spans(rate, mean)
    if length < 3:
        raise QkvError(f"Texts of {length} tokens have no room for a token, a gap and an end: at least 3.")
    whole = length - 1
    while (spans := spans_of(whole + 1, rate, mean)) and whole + 1 - spans[0] + spans[1] + 1 <= length:
        whole += 1
    return whole


def _divided(total: int, parts: int, generator: np.random.Generator) -> list[int]:
    """Whole numbers of at least 1 that sum to `total`, every division as likely as any other."""
    borders = np.sort(generator.choice(total - 1, parts - 1, replace=False)) + 1
    sizes: list[int] = np.diff(np.concatenate([[0], borders, [total]])).tolist()
    return sizes
