"""Streams give whole characters, and all of the text in the end."""

from random import Random

import pytest

from qkv.data.published_tokenizer import read_tokenizer
from qkv.data.sentencepiece import read_sentencepiece, sentencepiece_tokenizer
from qkv.data.text_stream import TextStream
from qkv.data.tokenizer import TextTokenizer
from tests.data.published_folders import CORPUS, bert_folder, byte_level_folder, sentencepiece_bytes
from tests.data.torture import TORTURE

TEXTS = [*CORPUS[:6], *(text for text in TORTURE if len(text) < 1000)]


def pieces_of(tokenizer, ids):
    stream = TextStream(tokenizer)
    return [*(stream.add(token) for token in ids), stream.end()]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    folders = {name: tmp_path_factory.mktemp(name) for name in ("bert", "cleaned", "gpt2", "unigram", "fallback")}
    made = {
        "bytes": TextTokenizer.train("bytes", CORPUS),
        "trained": TextTokenizer.train("bpe", CORPUS, vocabulary=400),
        "bert": read_tokenizer(bert_folder(folders["bert"])),
        "cleaned": read_tokenizer(bert_folder(folders["cleaned"], clean_up_tokenization_spaces=True)),
        "gpt2": read_tokenizer(byte_level_folder(folders["gpt2"], "gpt2", ["<|endoftext|>"])),
    }
    settings = {"unigram": {}, "fallback": {"kind": "bpe", "size": 500, "byte_fallback": True}}
    for name, setting in settings.items():
        (folders[name] / "tokenizer.model").write_bytes(sentencepiece_bytes(**setting))
        model = read_sentencepiece(folders[name] / "tokenizer.model")
        made[name] = TextTokenizer(sentencepiece_tokenizer(model))
    return made


@pytest.mark.parametrize("name", ["bytes", "trained", "bert", "cleaned", "gpt2", "unigram", "fallback"])
def test_the_pieces_add_up_to_the_text(tokenizers, name):
    tokenizer = tokenizers[name]
    for ids in tokenizer.encode(TEXTS):
        assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids, whole=True)


@pytest.mark.parametrize("name", ["bytes", "trained", "cleaned", "gpt2", "unigram"])
def test_ids_that_come_together_give_what_they_give_one_by_one(tokenizers, name):
    """Even if they spell no characters."""
    tokenizer, random = tokenizers[name], Random(0)
    for _ in range(20):
        ids = [random.randrange(tokenizer.size) for _ in range(30)]
        stream = TextStream(tokenizer)
        assert stream.add(*ids[:3]) + stream.add(*ids[3:]) + stream.end() == "".join(pieces_of(tokenizer, ids))


def test_characters_come_whole_and_words_at_once(tokenizers):
    tokenizer = tokenizers["bytes"]
    assert pieces_of(tokenizer, tokenizer.encode(["a€👍"])[0]) == ["a", "", "", "€", "", "", "", "👍", ""]
    tokenizer = tokenizers["gpt2"]
    (ids,) = tokenizer.encode(["the cats sang"])
    assert pieces_of(tokenizer, ids)[:-1] == [tokenizer.decode([token]) for token in ids]


def test_half_a_character_at_the_end_shows(tokenizers):
    tokenizer = tokenizers["bytes"]
    stream = TextStream(tokenizer)
    assert stream.add(tokenizer.encode(["€"])[0][0]) == ""
    assert stream.end() == "\ufffd"
    assert stream.end() == ""
    assert stream.add(tokenizer.encode(["x"])[0][0]) == "x"


def test_special_tokens_give_no_text(tokenizers):
    tokenizer = tokenizers["trained"]
    ids = [tokenizer.start, *tokenizer.encode(["the cat"])[0], tokenizer.end]
    pieces = pieces_of(tokenizer, ids)
    assert (pieces[0], pieces[-2], "".join(pieces)) == ("", "", "the cat")
