"""Choices as they are spelled on a command line."""

from pathlib import Path

import pytest

from qkv.api.choices import NewTokenizer
from qkv.cli.spellings import sizes_of, tokenizer_of, tokenizers_of
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError


def test_a_tokenizer_is_a_kind_and_perhaps_a_number() -> None:
    assert tokenizer_of("characters") == NewTokenizer("characters")
    assert tokenizer_of("bpe:8000") == NewTokenizer("bpe", 8000)


def test_a_tokenizer_may_be_a_file(tmp_path: Path) -> None:
    made = TextTokenizer.train("bytes", ["a"])
    made.save(tmp_path / "tokenizer.json")
    loaded = tokenizer_of(str(tmp_path / "tokenizer.json"))
    assert isinstance(loaded, TextTokenizer)
    assert loaded.fingerprint() == made.fingerprint()


@pytest.mark.parametrize(
    ("spelled", "hint"),
    [("bep:8000", "bpe?"), ("qqqq", "there are word"), ("bpe:many", "bpe:8000"), ("bpe:", "bpe:8000")],
)
def test_a_tokenizer_that_is_none_is_answered_with_what_is(spelled: str, hint: str) -> None:
    with pytest.raises(QkvError) as raised:
        tokenizer_of(spelled)
    assert hint in str(raised.value)


def test_a_side_without_its_own_tokenizer_gets_one_of_the_common_kind() -> None:
    assert tokenizers_of("word", None, None) == (NewTokenizer("word"), None)
    assert tokenizers_of("word", "characters", None) == (NewTokenizer("characters"), NewTokenizer("word"))


def test_a_size_is_a_name_changes_or_both() -> None:
    assert sizes_of("transformer", "base")["width"] == 512
    small = sizes_of("transformer", "width=128,layers=2")
    assert (small["width"], small["encoder_layers"], small["decoder_layers"]) == (128, 2, 2)
    changed = sizes_of("transformer", "big,dropout=0.1")
    assert (changed["width"], changed["dropout"]) == (1024, 0.1)


def test_a_common_name_stands_for_both_sides_where_the_family_tells_them_apart() -> None:
    assert sizes_of("transformer", "hidden=64")["hidden"] == 64
    marian = sizes_of("marian", "hidden=64,heads=2")
    assert (marian["encoder_hidden"], marian["decoder_hidden"], marian["encoder_heads"]) == (64, 64, 2)


def test_dropout_given_by_itself_wins() -> None:
    assert sizes_of("transformer", "base,dropout=0.3", 0.2)["dropout"] == 0.2


@pytest.mark.parametrize("spelled", ["width=wide", "base,128", "width=128,,layers=2"])
def test_a_size_that_is_no_number_is_refused(spelled: str) -> None:
    with pytest.raises(QkvError):
        sizes_of("transformer", spelled)
