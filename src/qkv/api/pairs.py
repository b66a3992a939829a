"""Pairs of texts: read from a file, divided into what is trained on and what is held out."""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from qkv.data.table import Problem, read_table
from qkv.errors import QkvError
from qkv.train.reporter import Reporter

Pair = tuple[str, str]  # (source, target)

PROBLEMS_SHOWN = 5


def read_pairs(
    path: str | Path,
    source: str,
    target: str,
    *,
    names: Sequence[str] | None = None,
    format: str | None = None,
    prefix: str = "",
    say: Callable[[str], None] | None = None,
) -> list[Pair]:
    """The (source, target) pairs of two named columns of a table: TSV, CSV, JSONL or parquet, a file, a folder or `-`.

    `names` names the columns of a file without a header line, `format` is needed for standard input. Bad rows are left
    out and reported through `say`, by default on standard error. `prefix` is put before every source, as T5 is told its
    task: `summarize: `.
    """
    if source == target:
        raise QkvError(f"The source and the target are both the column {source!r}: name two different columns.")
    table = read_table(path, [source, target], names=names, format=format)
    report_problems(table.problems, say or Reporter().say)
    return [(prefix + text, wanted) for text, wanted in zip(table.column(source), table.column(target), strict=True)]


def report_problems(problems: Sequence[Problem], say: Callable[[str], None]) -> None:
    """The first few bad rows, each with its line and reason, then how many there are in all."""
    for problem in problems[:PROBLEMS_SHOWN]:
        say(f"Left out: {problem}")
    if len(problems) > PROBLEMS_SHOWN:
        say(f"Left out: {len(problems):,} bad rows in all; the first {PROBLEMS_SHOWN} are shown.")


def hold_out(pairs: Sequence[Pair], share: float) -> tuple[list[Pair], list[Pair]]:
    """(to train on, held out): about `share` of the sources, at least one, with all their targets.

    A source is never on both sides. Which ones are held out depends on the sources alone and not on their order.
    """
    if not 0 < share < 1:
        raise QkvError(f"The share to hold out must lie between 0 and 1, but is {share}.")
    sources = sorted({source for source, _ in pairs}, key=lambda text: hashlib.sha256(text.encode()).digest())
    if len(sources) < 2:
        raise QkvError(
            f"Holding some data out needs at least two different sources, and there is {len(sources)}: "
            "give more pairs, or hold out none (0)."
        )
    held = set(sources[: min(len(sources) - 1, math.ceil(share * len(sources)))])
    return [pair for pair in pairs if pair[0] not in held], [pair for pair in pairs if pair[0] in held]


def fingerprint(pairs: Iterable[Pair]) -> str:
    """A short name for these very pairs in this very order."""
    digest = hashlib.sha256()
    for pair in pairs:
        for text in pair:
            content = text.encode()
            digest.update(
                len(content).to_bytes(8, "big") + content
            )  # the length keeps ("ab", "c") and ("a", "bc") apart
    return digest.hexdigest()[:16]
