"""Tokens put together to words."""

from qkv.generate.alignment import Aligned
from qkv.generate.spoken_words import Word, timed, words_of
from tests.generate.speech import tokenizer

TOKENIZER = tokenizer()


def words(text, language="en"):
    ids = TOKENIZER.encode([text])[0]
    found = words_of(TOKENIZER, ids, language)
    assert [piece.first for piece in found] == [sum(p.count for p in found[:n]) for n in range(len(found))]
    assert sum(piece.count for piece in found) == len(ids)
    return [piece.text for piece in found]


def test_words_begin_with_a_space_and_keep_their_signs():
    assert words(' He said "no", (twice) and left.') == [" He", " said", ' "no",', " (twice)", " and", " left."]


def test_letters_of_several_bytes_stay_whole():
    assert words(" naïve café €5") == [" naïve", " café", " €5"]


def test_languages_without_spaces_are_divided_by_character():
    assert words("你好。", "zh") == ["你", "好。"]
    assert words("你好", "en") == ["你好"]


def test_half_a_character_is_not_lost():
    ids = TOKENIZER.encode([" é"])[0][:-1]
    assert sum(piece.count for piece in words_of(TOKENIZER, ids, "en")) == len(ids)


def test_a_word_lasts_until_the_next_begins():
    ids = TOKENIZER.encode([" ab c"])[0]  # 3 and 2 tokens
    aligned = Aligned([2, 3, 5, 8, 9, 12], [0.5, 0.7, 0.9, 1.0, 0.6])
    found = timed(words_of(TOKENIZER, ids, "en"), aligned, 10.0, 0.5)
    assert found == [Word("ab", 11.0, 14.0, (0.5 + 0.7 + 0.9) / 3), Word("c", 14.0, 16.0, 0.8)]
