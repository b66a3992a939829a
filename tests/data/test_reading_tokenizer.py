"""What stands around texts, for models that read and for those that write."""

import pytest

from qkv.data.reading_tokenizer import for_captions, for_reading, for_writing
from qkv.data.tokenizer import TextTokenizer

TEXTS = ["And God said, Let there be light.", "And there was light."]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "characters", "word", "bytes"])
def test_a_prompt_begins_with_the_start_token_and_has_no_end(kind: str, tmp_path) -> None:
    plain = TextTokenizer.train(kind, TEXTS, vocabulary=None if kind in ("characters", "bytes") else 280)
    tokenizer = for_writing(plain)
    (ids,) = tokenizer.encode(TEXTS[:1])
    assert ids == plain.encode(TEXTS[:1])[0]
    assert tokenizer.encode(TEXTS[:1], special=True) == [[tokenizer.start, *ids]]
    assert tokenizer.decode(ids) == plain.decode(ids)
    tokenizer.save(tmp_path / "tokenizer.json")
    assert TextTokenizer.load(tmp_path / "tokenizer.json").encode(TEXTS, special=True) == tokenizer.encode(
        TEXTS, special=True
    )
    assert for_writing(tokenizer) is tokenizer


def test_what_stands_around_texts_already_stays() -> None:
    reading = for_reading(TextTokenizer.train("wordpiece", TEXTS, vocabulary=200))
    assert for_writing(reading) is reading
    assert for_reading(reading) is reading
    (ids,) = reading.encode(TEXTS[:1], special=True)
    assert (ids[0], ids[-1]) == (reading.classifier, reading.separator)


@pytest.mark.parametrize("kind", ["word", "characters", "bpe", "wordpiece", "unigram", "bytes"])
def test_a_caption_ends_with_the_largest_id(kind: str, tmp_path) -> None:
    plain = TextTokenizer.train(kind, TEXTS, vocabulary=None if kind in ("word", "characters", "bytes") else 280)
    tokenizer = for_captions(plain)
    (ids,) = plain.encode(TEXTS[:1])
    assert tokenizer.encode(TEXTS[:1], special=True) == [[tokenizer.start, *ids, tokenizer.end]]
    assert tokenizer.end == tokenizer.size - 1 == plain.size + 1
    assert tokenizer.encode(["<|endoftext|>"], special=True)[0].count(tokenizer.end) == 1  # a text cannot spell it
    tokenizer.save(tmp_path / "tokenizer.json")
    again = TextTokenizer.load(tmp_path / "tokenizer.json")
    assert again.encode(TEXTS, special=True) == tokenizer.encode(TEXTS, special=True)
    assert (again.start, again.end, again.pad) == (tokenizer.start, tokenizer.end, tokenizer.pad)
    assert for_captions(tokenizer) is tokenizer
