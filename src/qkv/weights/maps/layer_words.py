"""What a configuration says of its layers in words, one for each: the same as few words that are repeated."""

from __future__ import annotations

from collections.abc import Sequence


def fewest(words: Sequence[str]) -> str:
    """The shortest beginning that, again and again, gives all of them: "local lsh" of local, lsh, local, lsh, local."""
    count = len(words)
    period = next(period for period in range(1, count + 1) if list(words) == (list(words[:period]) * count)[:count])
    return " ".join(words[:period])
