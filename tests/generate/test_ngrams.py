"""Counted language models: probabilities that sum to one, and by hand."""

import math

import pytest
import torch

from qkv.data.letters import Letters
from qkv.errors import QkvError
from qkv.generate.ctc import Beam, read_beams
from qkv.generate.ngrams import WordNGrams

TEXTS = ["the cat sat", "the dog sat on the cat", "a dog ran", "san francisco", "in san francisco"]


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("before", ["", "the", "the dog", "never seen", "on the"])
def test_probabilities_of_all_words_and_an_unknown_one_are_one(order: int, before: str) -> None:
    model = WordNGrams(TEXTS, order)
    total = sum(math.exp(model(before, word)) for word in [*model.vocabulary, "neverseen"])
    assert total == pytest.approx(1)


def test_two_words_by_hand() -> None:
    model = WordNGrams(["a b", "a c", "a b"], order=2, discount=0.5)
    single = {"a": 1, "b": 1, "c": 1}  # after how many different words
    shorter = {word: (count - 0.5 + 0.5 * 3 * 0.25) / 3 for word, count in single.items()}
    assert math.exp(model("a", "b")) == pytest.approx((2 - 0.5 + 0.5 * 2 * shorter["b"]) / 3)
    assert math.exp(model("b", "c")) == pytest.approx(shorter["c"])
    assert math.exp(model("", "zebra")) == pytest.approx((0.5 * 1 * (0.5 * 3 * 0.25 / 3)) / 3)


def test_a_word_seen_after_one_word_alone_is_unlikely_elsewhere() -> None:
    model = WordNGrams([*TEXTS, "san francisco", "san francisco"], order=2)
    assert model("san", "francisco") > math.log(0.8)
    assert model("a", "francisco") < model("a", "sat")


def test_case_may_be_passed_over() -> None:
    assert WordNGrams(["The CAT"], lowercase=True)("THE", "Cat") == WordNGrams(["the cat"])("the", "cat")


def test_what_is_heard_badly_is_read_by_what_is_usual() -> None:
    letters = Letters(("-", "|", *"acot"), space=1)
    logits = torch.full((8, 6), -6.0)
    for frame, token in enumerate(letters.encode("a cot")):
        logits[frame, token] = 6.0
    logits[3, letters.tokens.index("a")] = 5.9  # nearly "a cat"
    logits[5:, 0] = 6.0
    assert letters.decode(read_beams(logits, letters)[0].ids) == "a cot"
    usual = WordNGrams(["a cat", "a cat", "the cat"])
    assert letters.decode(read_beams(logits, letters, Beam(language=usual))[0].ids) == "a cat"


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(QkvError, match="not one word"):
        WordNGrams(["", "  "])
    for order, discount in ((0, 0.5), (2, 0.0), (2, 1.0)):
        with pytest.raises(QkvError, match="1 word at least"):
            WordNGrams(["a"], order, discount)
