"""How good an output is: BLEU and chrF by sacrebleu, and error rates by edit distance.

Everywhere `references` holds one entry for each hypothesis: a reference, or a list of acceptable references.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

from qkv.errors import QkvError

References = Sequence[str] | Sequence[Sequence[str]]


@dataclass(frozen=True)
class CorpusScore:
    """A figure and the signature that makes it comparable: version, tokenizer, case, smoothing."""

    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.signature})"


def bleu(hypotheses: Sequence[str], references: References) -> CorpusScore:
    """Corpus BLEU, 0 to 100 [papineni2002 §2.3]."""
    metric = _sacrebleu().BLEU()
    score = metric.corpus_score(list(hypotheses), _streams(hypotheses, references)).score
    return CorpusScore(score, str(metric.get_signature()))


def chrf(hypotheses: Sequence[str], references: References) -> CorpusScore:
    """Character n-gram F-score, 0 to 100 [popovic2015 eq.1]."""
    metric = _sacrebleu().CHRF()
    score = metric.corpus_score(list(hypotheses), _streams(hypotheses, references)).score
    return CorpusScore(score, str(metric.get_signature()))


def word_error_rate(hypotheses: Sequence[str], references: References) -> float:
    """Edits between words (split at white space) for each word of the reference."""
    return _error_rate(hypotheses, references, str.split)


def phoneme_error_rate(hypotheses: Sequence[str], references: References) -> float:
    """Edits between phonemes, written with spaces as in `HH AH L OW`, for each phoneme of the reference."""
    return _error_rate(hypotheses, references, str.split)


def character_error_rate(hypotheses: Sequence[str], references: References) -> float:
    """Edits between characters for each character of the reference."""
    return _error_rate(hypotheses, references, list)


def sequence_error_rate(hypotheses: Sequence[str], references: References) -> float:
    """The share of hypotheses that equal none of their references.

    Of pronunciations this is the figure called word error rate: one word, right or wrong as a whole.
    """
    wrong = [
        hypothesis.split() not in [reference.split() for reference in choices]
        for hypothesis, choices in matched(hypotheses, references)
    ]
    return sum(wrong) / len(wrong)


def edit_distance(first: Sequence[str], second: Sequence[str]) -> int:
    """The fewest insertions, deletions and substitutions that turn one sequence into the other.

    Bit-parallel [hyyro2003]: neighbouring cells of the table of distances differ by -1, 0 or 1, so a whole column
    fits into two integers, one bit a row, and Python's integers are as long as `first` needs.
    """
    if not first or not second:
        return len(first) + len(second)
    every_row = (1 << len(first)) - 1
    last_row = 1 << (len(first) - 1)
    rows_of: dict[str, int] = {}  # where each symbol stands in `first`
    for row, symbol in enumerate(first):
        rows_of[symbol] = rows_of.get(symbol, 0) | 1 << row

    up, down = every_row, 0  # rows where the column rises by 1, rows where it falls by 1
    distance = len(first)  # the last cell of the column before any symbol of `second`
    for symbol in second:
        match = rows_of.get(symbol, 0)
        diagonal = (((match & up) + up) ^ up) | match | down  # rows whose diagonal step costs nothing
        right_up = down | ~(diagonal | up) & every_row  # rows where the step to the right rises by 1
        right_down = up & diagonal  # and where it falls by 1
        distance += bool(right_up & last_row) - bool(right_down & last_row)
        right_up = (right_up << 1 | 1) & every_row  # the edge above the table rises by 1 with each symbol
        right_down = right_down << 1 & every_row
        up = right_down | ~(diagonal | right_up) & every_row
        down = right_up & diagonal
    return distance


def _error_rate(hypotheses: Sequence[str], references: References, split: Callable[[str], list[str]]) -> float:
    """All edits over all reference symbols; of several references the nearest counts, of equally near the longest."""
    edits = symbols = 0
    for hypothesis, choices in matched(hypotheses, references):
        said = split(hypothesis)
        options = [(edit_distance(said, wanted), -len(wanted)) for wanted in map(split, choices)]
        distance, negative_length = min(options)
        edits += distance
        symbols -= negative_length
    if symbols == 0:
        raise QkvError("An error rate needs references that are not all empty.")
    return edits / symbols


def matched(hypotheses: Sequence[str], references: References) -> list[tuple[str, list[str]]]:
    if len(hypotheses) != len(references) or not len(hypotheses):
        raise QkvError(
            f"A score needs one reference entry for each hypothesis and at least one of both, but there are "
            f"{len(hypotheses)} hypotheses and {len(references)} reference entries."
        )
    choices = [[reference] if isinstance(reference, str) else list(reference) for reference in references]
    if empty := [number for number, options in enumerate(choices) if not options]:
        raise QkvError(f"Hypothesis {empty[0]} has no reference; each needs at least one.")
    return list(zip(hypotheses, choices, strict=True))


def _streams(hypotheses: Sequence[str], references: References) -> list[list[str | None]]:
    """sacrebleu's layout: the first reference of every hypothesis, then the second of every one, None where absent."""
    choices = [options for _, options in matched(hypotheses, references)]
    most = max(map(len, choices))
    return [[options[i] if i < len(options) else None for options in choices] for i in range(most)]


def _sacrebleu() -> ModuleType:
    try:
        import sacrebleu.metrics
    except ImportError as error:
        raise QkvError('BLEU and chrF need sacrebleu: pip install "qkv[bleu]".') from error
    return sacrebleu.metrics
