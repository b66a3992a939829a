"""Scores against hand-made examples and against the plain table of edit distances."""

import random
import sys

import pytest

from qkv.errors import QkvError
from qkv.train.metrics import (
    bleu,
    character_error_rate,
    chrf,
    edit_distance,
    phoneme_error_rate,
    sequence_error_rate,
    word_error_rate,
)


def table_distance(first: list[str], second: list[str]) -> int:
    """The textbook recurrence, row by row."""
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        previous, row = row, [i]
        for j, b in enumerate(second, 1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (a != b)))
    return row[-1]


@pytest.mark.parametrize(
    ("first", "second", "distance"),
    [("", "", 0), ("abc", "", 3), ("", "ab", 2), ("kitten", "sitting", 3), ("abc", "abc", 0), ("ab", "ba", 2)],
)
def test_known_distances(first: str, second: str, distance: int) -> None:
    assert edit_distance(first, second) == distance


def test_the_bit_parallel_distance_equals_the_table() -> None:
    generator = random.Random(0)
    for _ in range(500):
        letters = "ab" if generator.random() < 0.5 else "abcdefgh"
        first = generator.choices(letters, k=generator.randrange(0, 90))
        second = generator.choices(letters, k=generator.randrange(0, 90))
        assert edit_distance(first, second) == table_distance(first, second)


def test_error_rates_sum_edits_before_dividing() -> None:
    hypotheses, references = ["HH AH L OW", "K AE T"], ["HH EH L OW", "D AO G"]
    assert phoneme_error_rate(hypotheses, references) == pytest.approx((1 + 3) / 7)
    assert word_error_rate(["the cat sat", ""], ["the cat sat down", "yes"]) == pytest.approx(2 / 5)
    assert character_error_rate(["abc"], ["abcd"]) == pytest.approx(1 / 4)
    assert sequence_error_rate(hypotheses, references) == 1.0


def test_the_nearest_of_several_references_counts() -> None:
    references = [["T AH M EY T OW", "T AH M AA T OW"], ["EY"]]
    assert phoneme_error_rate(["T AH M AA T OW", "EY"], references) == 0.0
    assert sequence_error_rate(["T AH M AA T OW", "AH"], references) == 0.5
    # Equally near references of length 1 and 3: the longer one counts.
    assert phoneme_error_rate(["A B"], [["A", "A B C"]]) == pytest.approx(1 / 3)


def test_counts_must_agree_and_references_must_exist() -> None:
    with pytest.raises(QkvError, match="2 hypotheses and 1 reference"):
        word_error_rate(["a", "b"], ["a"])
    with pytest.raises(QkvError, match="at least one"):
        word_error_rate([], [])
    with pytest.raises(QkvError, match="Hypothesis 1 has no reference"):
        bleu(["a", "b"], [["a"], []])
    with pytest.raises(QkvError, match="not all empty"):
        word_error_rate(["a"], [""])


def test_bleu_and_chrf_come_with_their_signatures() -> None:
    sentences = ["the cat sat on the mat .", "a dog barked at the moon all night ."]
    perfect = bleu(sentences, sentences)
    assert perfect.value == pytest.approx(100.0)
    assert "tok:13a" in perfect.signature
    assert "version:" in str(perfect)
    worse = ["the cat sat on a mat .", "a dog barked all night ."]
    assert 0 < bleu(worse, sentences).value < 100
    assert 0 < chrf(worse, sentences).value < 100
    assert "nc:6" in chrf(worse, sentences).signature


def test_bleu_with_a_second_reference_for_one_sentence_only() -> None:
    hypotheses = ["the cat sat on the mat .", "a dog barked at the moon ."]
    both = [["something else entirely here .", hypotheses[0]], [hypotheses[1]]]
    assert bleu(hypotheses, both).value == pytest.approx(100.0)


def test_without_sacrebleu_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(QkvError, match=r'pip install "qkv\[bleu\]"'):
        bleu(["a"], ["a"])
