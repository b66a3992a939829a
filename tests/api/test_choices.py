"""Sizes follow from a name, from changes and from the tokenizers; every family has its desk size."""

import pytest

from qkv.api.choices import NewTokenizer, choose_sizes, make_tokenizers
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from qkv.models.catalogue import FAMILIES, count_parameters

PAIRS = [("abc", "x y z"), ("cab", "z x y")]
LETTERS = TextTokenizer.train("characters", ["abc"])
SYMBOLS = TextTokenizer.train("symbols", ["x y z w"])


def test_one_tokenizer_serves_both_sides_and_knows_both() -> None:
    source, target = make_tokenizers(PAIRS, NewTokenizer("characters"), None)
    assert source is target
    assert source.unknown not in source.encode(["abc xyz"])[0]


def test_each_side_may_have_its_own() -> None:
    source, target = make_tokenizers(PAIRS, NewTokenizer("characters"), NewTokenizer("symbols"))
    assert source.tokens(source.encode(["cab"])[0]) == ["c", "a", "b"]
    assert target.tokens(target.encode(["x z"])[0]) == ["x", "z"]


def test_a_tokenizer_that_is_there_is_taken_as_it_is() -> None:
    assert make_tokenizers(PAIRS, LETTERS, SYMBOLS) == (LETTERS, SYMBOLS)


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.reads == "text"])
def test_every_family_has_a_small_size(family: str) -> None:
    sizes = choose_sizes(family, "desk", LETTERS, LETTERS)
    assert sizes.vocabulary == LETTERS.size
    assert count_parameters(family, sizes) < 10_000_000


def test_a_family_that_reads_no_text_has_no_tokenizer() -> None:
    with pytest.raises(QkvError, match="Family vit reads images, not text"):
        choose_sizes("vit", "desk", LETTERS, LETTERS)


def test_changes_apply_to_the_small_size() -> None:
    small, changed = (choose_sizes("rnn", sizes, LETTERS, SYMBOLS) for sizes in ("desk", {"width": 64}))
    assert (changed.width, changed.embedding) == (64, small.embedding)
    assert (changed.vocabulary, changed.source_vocabulary) == (SYMBOLS.size, LETTERS.size)


def test_a_published_size_takes_the_vocabulary_of_the_data() -> None:
    sizes = choose_sizes("transformer", "base", LETTERS, LETTERS)
    assert (sizes.width, sizes.vocabulary, sizes.source_vocabulary) == (512, LETTERS.size, None)


def test_a_family_with_one_vocabulary_says_so() -> None:
    with pytest.raises(QkvError, match="one vocabulary for both sides"):
        choose_sizes("marian", "desk", LETTERS, SYMBOLS)


def test_a_vocabulary_is_the_tokenizers_business() -> None:
    with pytest.raises(QkvError, match="follows from the tokenizer"):
        choose_sizes("transformer", {"vocabulary": 10}, LETTERS, LETTERS)


@pytest.mark.parametrize(("name", "hint"), [("bsae", "did you mean base?"), ("qqqq", "there are desk, base, big.")])
def test_an_unknown_size_is_answered_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(QkvError) as raised:
        choose_sizes("transformer", name, LETTERS, LETTERS)
    assert hint in str(raised.value)
