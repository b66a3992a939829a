"""Encodings tell where each token comes from; limits say what they cannot do."""

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from qkv.data.encoding import Limit, twin
from qkv.data.published_tokenizer import read_tokenizer
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from tests.data.published_folders import bert_folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return read_tokenizer(bert_folder(tmp_path_factory.mktemp("bert")))


def test_places_lead_back_to_the_text(bert):
    text = "The  cats\tsang!"
    (encoding,) = bert.encodings([text])
    inside = [place for place, special in enumerate(encoding.special) if not special]
    assert inside == list(range(1, len(encoding) - 1))
    for place in inside:
        first, last = encoding.offsets[place]
        label = bert.tokens([encoding.ids[place]])[0].removeprefix("##")
        assert text[first:last].lower() == label
    assert encoding.offsets[0] == encoding.offsets[-1] == (0, 0)
    assert encoding.words[0] is None
    assert max(word for word in encoding.words if word is not None) == 3  # the cats sang !


def test_pairs_have_segments_and_sides(bert):
    (pair,) = bert.encode_pairs(["the cat"], ["the mat"])
    assert pair.ids[0] == bert.classifier
    assert [place for place, token in enumerate(pair.ids) if token == bert.separator] == [
        pair.segments.index(1) - 1,
        len(pair) - 1,
    ]
    assert pair.sides[0] is None
    assert {side for side in pair.sides if side is not None} == {0, 1}
    (bare,) = bert.encode_pairs(["the cat"], ["the mat"], special=False)
    assert list(bare.ids) == [*bert.encode(["the cat"])[0], *bert.encode(["the mat"])[0]]
    with pytest.raises(QkvError, match="2 and 1"):
        bert.encode_pairs(["a", "b"], ["c"])


def test_windows_cover_the_text_and_share_their_ends(bert):
    text = "the cat sat on the mat and the cats sang " * 5
    (ids,) = bert.encode([text])
    windows = bert.encodings([text, "short"], limit=Limit(20, stride=6))
    assert [window.row for window in windows] == [0] * (len(windows) - 1) + [1]
    inner = [list(window.ids[1:-1]) for window in windows[:-1]]
    joined = inner[0]
    for window in inner[1:]:
        assert joined[-6:] == window[:6]
        joined = joined + window[6:]
    assert joined == ids
    assert [list(one.ids) for one in bert.encodings([text], limit=Limit(20))] == [[bert.start, *ids[:18], bert.end]]
    assert bert.encode([text]) == [ids]  # the tokenizer itself still does not cut


def test_limits_that_make_no_sense(bert):
    for arguments, problem in (
        ((8, "middle"), "no way 'middle'"),
        ((0,), "at least one"),
        ((8, "longest", 8), "should be fewer"),
        ((8, "longest", -1), "should be fewer"),
    ):
        with pytest.raises(QkvError, match=problem):
            Limit(*arguments)
    with pytest.raises(QkvError, match="leaves 0 beside the 2 special ones"):
        bert.encodings(["a"], limit=Limit(2))
    with pytest.raises(QkvError, match="leaves 4 beside the 2 special ones, of which 4"):
        bert.encodings(["a"], limit=Limit(6, stride=4))
    with pytest.raises(QkvError, match="Only pairs"):
        bert.encodings(["a"], limit=Limit(6, "second"))


def test_what_is_no_text_is_named(bert):
    with pytest.raises(QkvError, match=r"'\\ud800' is no valid text"):
        bert.encodings(["fine", "\ud800"])
    with pytest.raises(QkvError, match=r"'\\udfff' is no valid text"):
        bert.encode_pairs(["fine"], ["\udfff"])
    with pytest.raises(QkvError, match="7 is no valid text"):
        bert.encode_words([["fine", 7]])


def test_text_cannot_smuggle_special_tokens_into_encodings(bert):
    (encoding,) = bert.encodings(["a [SEP] b"])
    assert [encoding.ids.count(bert.separator), encoding.ids[-1]] == [1, bert.separator]
    (allowed,) = bert.encodings(["a [SEP] b"], allow_special=True)
    assert allowed.ids.count(bert.separator) == 2
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "</s>": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (word,) = TextTokenizer(words).encodings(["a </s> a"])
    assert word.ids == (1, 0, 1)


def test_a_twin_has_settings_of_its_own():
    made = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<unk>": 2}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_tokens([AddedToken("new", special=False), AddedToken("newer", special=True)])
    other = twin(made)
    other.enable_truncation(1)
    other.encode_special_tokens = True
    assert made.truncation is None
    assert not made.encode_special_tokens
    assert other.get_vocab() == made.get_vocab()
    assert made.encode("a new newer").ids == [0, 3, 4]
    assert twin(made).encode("a new newer").ids == [0, 3, 4]
