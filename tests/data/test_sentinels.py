"""Sentinels in text: heard as T5's tokenizer hears them, and nothing else is."""

import pytest
from transformers import AutoTokenizer, T5Tokenizer

from qkv.data.published_tokenizer import read_tokenizer
from qkv.data.sentencepiece import read_sentencepiece
from qkv.data.sentinels import hearing_sentinels, sentinels_of, spells_sentinels, with_sentinels
from qkv.data.tokenizer import TextTokenizer
from tests.api.corpus import VERSES
from tests.data.published_folders import CORPUS, sentencepiece_bytes
from tests.data.test_published_tokenizer import reference_pieces

GAPS = [
    "Thank you <extra_id_0> me to your party <extra_id_1> week.",
    "<extra_id_0>",
    "<extra_id_0> the cat<extra_id_1>sat",
    "the   <extra_id_2>  <extra_id_3>\n mat <extra_id_99>",
    "die Katze <extra_id_0><extra_id_1> <extra_id_100> <extra_id_> <EXTRA_ID_0> extra_id_0",
    "naïve café <extra_id_10>, 日本語<extra_id_11>。",
]


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5")
    (folder / "spiece.model").write_bytes(sentencepiece_bytes(pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    vocabulary = reference_pieces(folder / "spiece.model")
    vocabulary += [(f"<extra_id_{number}>", 0.0) for number in reversed(range(100))]
    characters = read_sentencepiece(folder / "spiece.model").characters
    return read_tokenizer(folder), T5Tokenizer(vocab=vocabulary, _spm_precompiled_charsmap=characters)


def test_they_are_counted_down(t5):
    ours, _ = t5
    assert sentinels_of(ours) == tuple(range(ours.size - 1, ours.size - 101, -1))


def test_texts_with_gaps_are_cut_as_the_reference_cuts_them(t5):
    ours, theirs = t5
    hearing = hearing_sentinels(ours)
    texts = [*GAPS, *CORPUS[:6]]
    assert hearing.encode(texts, special=True) == theirs(texts)["input_ids"]
    assert hearing.size == ours.size
    assert any(token in sentinels_of(ours) for token in hearing.encode(GAPS[:1])[0])
    assert not any(token in sentinels_of(ours) for row in ours.encode(GAPS) for token in row)


def test_a_published_tokenizer_file_hears_them_too(t5, tmp_path):
    _, theirs = t5
    theirs.save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer.json").exists()
    hearing = hearing_sentinels(read_tokenizer(tmp_path))
    assert hearing.encode(GAPS, special=True) == theirs(GAPS)["input_ids"]


def test_they_are_shown_as_the_reference_shows_them(t5):
    ours, theirs = t5
    for row in theirs(GAPS, add_special_tokens=False)["input_ids"]:
        ids = [token for token in row if token != ours.unknown]
        assert hearing_sentinels(ours).decode(ids) == theirs.decode(ids)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_other_special_tokens_stay_text(t5):
    hearing = hearing_sentinels(t5[0])
    (ids,) = hearing.encode(["the </s> <pad> <extra_id_0> mat"])
    assert hearing.end not in ids
    assert hearing.pad not in ids
    assert hearing.id_of("<extra_id_0>") in ids


@pytest.mark.parametrize(("kind", "most"), [("bpe", 350), ("unigram", 350), ("wordpiece", 200), ("word", None)])
def test_a_tokenizer_made_here_gets_them_and_cuts_as_before(kind, most, tmp_path):
    plain = TextTokenizer.train(kind, VERSES, vocabulary=most)
    made = with_sentinels(plain)
    assert made.size == plain.size + 100
    assert made.encode(VERSES) == plain.encode(VERSES)
    assert with_sentinels(made) is made
    hearing = hearing_sentinels(made)
    # What is left of a text has the same pieces beside a gap as it had before.
    whole, gapped = hearing.encode(["And God saw the light", "And God <extra_id_0> the light"])
    start, end = hearing.encode(["And God", "the light"])
    assert gapped == [*start, sentinels_of(made)[0], *end]
    assert whole[: len(start)] == start
    made.save(tmp_path / "tokenizer.json")
    assert TextTokenizer.load(tmp_path / "tokenizer.json").fingerprint() == made.fingerprint()
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs("And God <extra_id_0> the light")["input_ids"] == [*gapped, made.end]


@pytest.mark.parametrize("kind", ["bytes", "characters"])
def test_spaces_that_are_tokens_stay_beside_a_gap(kind):
    hearing = hearing_sentinels(with_sentinels(TextTokenizer.train(kind, VERSES)))
    text = "And God <extra_id_0> the light"
    assert hearing.decode(hearing.encode([text])[0]) == text


def test_a_tokenizer_without_them_is_the_same():
    plain = TextTokenizer.train("bpe", VERSES, vocabulary=300)
    assert sentinels_of(plain) == ()
    assert hearing_sentinels(plain) is plain
    assert not spells_sentinels("no <extra_id> here")
