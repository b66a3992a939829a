"""Texts cut by looking up their words: to the token what the library cuts, whatever was met before."""

import re
from concurrent.futures import ThreadPoolExecutor
from string import punctuation

import pytest
from tokenizers import AddedToken, processors

from qkv.data import word_table
from qkv.data.encoding import Limit
from qkv.data.published_tokenizer import read_tokenizer
from qkv.data.reading_tokenizer import for_reading
from qkv.data.tokenizer import TextTokenizer
from qkv.data.word_table import WordTable, cuts_at_spaces
from qkv.errors import QkvError
from tests.data.published_folders import CORPUS, bert_folder
from tests.data.torture import TORTURE, random_strings

STRANGE = random_strings(200)
TEXTS = [*CORPUS[:6], *TORTURE, *STRANGE, " ".join(STRANGE), "a\x00 a a\x00\x00 \u0301a  a \u0301"]
BY_WORDS = ["bert", "cased", "word", "symbols", "wordpiece"]


@pytest.fixture(scope="module", params=BY_WORDS)
def tokenizer(request, tmp_path_factory):
    if request.param in ("bert", "cased"):
        config = {"do_lower_case": request.param == "bert"}
        return read_tokenizer(bert_folder(tmp_path_factory.mktemp("bert"), **config))
    return for_reading(TextTokenizer.train(request.param, CORPUS, vocabulary=300, lowercase=request.param == "word"))


@pytest.fixture(autouse=True)
def no_text_is_too_short(monkeypatch):
    monkeypatch.setattr("qkv.data.tokenizer.ENOUGH", 0)


def lists(rows):
    return [rows[row] for row in range(len(rows))]


@pytest.mark.parametrize("special", [False, True])
def test_texts_are_cut_as_the_library_cuts_them(tokenizer, special):
    assert cuts_at_spaces(tokenizer._tokenizer)
    for limit in (None, Limit(200), Limit(5)):
        expected = tokenizer.encode(TEXTS, special=special, limit=limit)
        for _ in range(2):  # words that are new, and words that are known
            assert lists(tokenizer.encode_rows(TEXTS, special=special, limit=limit)) == expected


def test_tables_that_are_full_forget(tokenizer, monkeypatch):
    """And slots that many words want, and texts longer than what is looked up at once."""
    for name, small in {"BITS": 6, "SLOTS": 64, "MOST": 16, "AT_ONCE": 32}.items():
        monkeypatch.setattr(word_table, name, small)
    again = TextTokenizer(tokenizer._tokenizer, tokenizer.notes)
    assert lists(again.encode_rows(TEXTS)) == tokenizer.encode(TEXTS)
    assert again._words is not None
    assert len(again._words._rows) <= 1 + 16 + len(punctuation)


def test_each_word_is_cut_once():
    asked = []

    def pieces(word):
        return [len(word), *word.encode()]

    def cut(words):
        asked.extend(words)
        return map(pieces, words)

    table = WordTable(cut, signs="!?", pad=0)
    long = ["fifteen-letters", "sixteen--letters", "\u0436" * 7, "\u0436" * 8, "l" * 256, "l" * 271, "l"]
    texts = ["a b a", "", "b  a\x00 " + " ".join(long), "a!b !?a?", " "]
    for _ in range(2):
        found = lists(table.rows(texts))
        words = [re.findall("[!?]|[^ !?]+", text) for text in texts]
        assert found == [[piece for word in some for piece in pieces(word)] for some in words]
    assert sorted(asked) == sorted({"a", "b", "a\x00", "!", "?", *long})


def test_several_threads_share_a_table(tokenizer):
    shared = TextTokenizer(tokenizer._tokenizer, tokenizer.notes)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda first: lists(shared.encode_rows(TEXTS[first:])), range(20)))
    expected = tokenizer.encode(TEXTS)
    assert found == [expected[first:] for first in range(20)]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "bytes", "characters"])
def test_others_are_left_to_the_library(kind):
    tokenizer = for_reading(TextTokenizer.train(kind, CORPUS, vocabulary=300 if kind != "bytes" else None))
    assert not cuts_at_spaces(tokenizer._tokenizer)
    assert lists(tokenizer.encode_rows(TEXTS, special=True)) == tokenizer.encode(TEXTS, special=True)


def test_a_token_that_holds_a_space_is_found(tmp_path):
    library = read_tokenizer(bert_folder(tmp_path))._tokenizer
    library.add_tokens([AddedToken("new york", special=False, normalized=True)])
    tokenizer = TextTokenizer(library)
    assert not cuts_at_spaces(library)
    assert lists(tokenizer.encode_rows(["to new york"]))[0][-1] == tokenizer.id_of("new york")


def test_a_text_that_stands_twice_is_left_to_the_library(tmp_path):
    library = read_tokenizer(bert_folder(tmp_path))._tokenizer
    mark = "[SEP]", library.token_to_id("[SEP]")
    library.post_processor = processors.TemplateProcessing(single="$A [SEP] $A", special_tokens=[mark])
    tokenizer = TextTokenizer(library)
    assert not cuts_at_spaces(library)
    assert lists(tokenizer.encode_rows(["the cat"], special=True)) == tokenizer.encode(["the cat"], special=True)


def test_what_is_no_text_or_leaves_no_room_is_refused(tokenizer):
    for bad, limit in ((["\ud800"], None), ([3], None), ("text", None), (["a"], Limit(2)), (["a"], Limit(9, stride=2))):
        with pytest.raises(QkvError) as by_library:
            tokenizer.encode(bad, special=True, limit=limit)
        with pytest.raises(QkvError) as by_words:
            tokenizer.encode_rows(bad, special=True, limit=limit)
        assert str(by_words.value) == str(by_library.value)
    assert len(tokenizer.encode_rows([], special=True)) == 0
