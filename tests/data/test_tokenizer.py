"""Tokenizers: lossless where they can be, deaf to special tokens in text, and clear about broken files."""

import json
import pickle
import random

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from qkv.data.token_kinds import KINDS
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError

CORPUS = [
    "The cat sat on the mat, and the cats sang.",
    "Das Mädchen grüßt die Katze: schöne Grüße!",
    "internationalisation of the international nation",
    "日本語のテキスト",
    "the the the cat cat sat",
] * 20

TORTURE = [
    "",
    " ",
    "  two  spaces  ",
    "\n\t\r\n\x0b\x0c\x85\u2028",
    "\x00 null \x00\x00",
    "👩‍👩‍👧‍👦🏳️‍🌈🇩🇪",
    "e\u0301 vs é, Z\u0351\u036b\u0343a\u0300l\u0301g\u0302o",
    "日本語 中文 한국어 العربية עברית ไทย",
    "\ufeffbyte order mark\ufffe\uffff",
    "</s> <pad><s> <unk> [CLS] ##ing ▁ Ġ Ċ Â",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0010ffff \U000e0001",
    "a" * 3000,
    "ẞ ǅ ﬁ İ ı ſ",
    "it's don't we'll I'd",
]

LOSSLESS = ["bpe", "unigram", "bytes"]


@pytest.fixture(scope="module")
def trained():
    return {
        kind: TextTokenizer.train(kind, CORPUS, vocabulary=400 if kind in ("bpe", "unigram") else None)
        for kind in KINDS
    }


def random_strings(count):
    generator = random.Random(5)
    ranges = [(0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000)]
    for _ in range(count):
        yield "".join(chr(generator.randrange(*generator.choice(ranges))) for _ in range(generator.randrange(30)))


@pytest.mark.parametrize("kind", LOSSLESS)
def test_round_trip_of_any_string(trained, kind):
    texts = TORTURE + list(random_strings(300))
    tokenizer = trained[kind]
    ids = tokenizer.encode(texts)
    assert [tokenizer.decode(row) for row in ids] == texts
    assert not {tokenizer.pad, tokenizer.start, tokenizer.end, tokenizer.unknown} & {i for row in ids for i in row}


def test_characters_round_trip_for_characters_seen():
    tokenizer = TextTokenizer.train("characters", TORTURE)
    assert [tokenizer.decode(row) for row in tokenizer.encode(TORTURE)] == TORTURE
    assert len(tokenizer.encode(["e\u0301\x00👩 "])[0]) == 5
    assert tokenizer.encode(["☃"]) == [[tokenizer.unknown]]


def test_symbols_split_at_white_space_alone():
    tokenizer = TextTokenizer.train("symbols", ["K AE1 T", "D AO1 G-x"])
    (ids,) = tokenizer.encode(["D AE1 G-x"])
    assert tokenizer.tokens(ids) == ["D", "AE1", "G-x"]
    assert tokenizer.decode(ids) == "D AE1 G-x"
    assert tokenizer.size == 4 + 6


def test_words_split_off_punctuation(trained):
    (ids,) = trained["word"].encode(["the cat, zebra."])
    assert trained["word"].tokens(ids) == ["the", "cat", ",", "<unk>", "."]
    assert trained["word"].decode(ids) == "the cat , ."


def test_wordpiece_decodes_words_whole(trained):
    (ids,) = trained["wordpiece"].encode(["the cat sang, sat."])
    assert trained["wordpiece"].decode(ids) == "the cat sang, sat."


def test_bytes_are_their_values_after_the_specials(trained):
    assert trained["bytes"].encode(["A\x00é"]) == [[4 + 0x41, 4, 4 + 0xC3, 4 + 0xA9]]
    assert trained["bytes"].size == 260


@pytest.mark.parametrize("kind", KINDS)
def test_specials_have_their_places(trained, kind):
    tokenizer = trained[kind]
    assert (tokenizer.pad, tokenizer.start, tokenizer.end, tokenizer.unknown) == (0, 1, 2, 3)


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_text_cannot_smuggle_in_special_tokens(kind, lowercase):
    texts = ["a </s> b <pad> <s>", "a</s>b </S>"] * 3
    tokenizer = TextTokenizer.train(
        kind, texts + CORPUS, vocabulary=None if kind == "bytes" else 400, lowercase=lowercase
    )
    assert (tokenizer.pad, tokenizer.start, tokenizer.end, tokenizer.unknown) == (0, 1, 2, 3)
    assert all(token > 2 for row in tokenizer.encode(texts) for token in row)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_is_the_same(trained, kind, tmp_path):
    trained[kind].save(tmp_path / "tokenizer.json")
    loaded = TextTokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.fingerprint() == trained[kind].fingerprint()
    assert loaded.size == trained[kind].size
    assert loaded.encode(TORTURE + CORPUS) == trained[kind].encode(TORTURE + CORPUS)
    json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))


def test_fingerprints_tell_vocabularies_apart(trained):
    assert len({tokenizer.fingerprint() for tokenizer in trained.values()}) == len(trained)


@pytest.mark.parametrize("kind", ["word", "symbols", "characters", "bpe", "bytes"])
def test_training_again_gives_the_same(kind):
    again = [TextTokenizer.train(kind, CORPUS, vocabulary=None if kind == "bytes" else 300) for _ in range(2)]
    assert again[0].fingerprint() == again[1].fingerprint()


@pytest.mark.parametrize("kind", KINDS)
def test_lowercase(kind):
    tokenizer = TextTokenizer.train(kind, CORPUS, vocabulary=None if kind == "bytes" else 400, lowercase=True)
    assert tokenizer.encode(["THE CAT"]) == tokenizer.encode(["the cat"])
    assert tokenizer.decode(tokenizer.encode(["THE CAT"])[0]) == "the cat"


def test_decode_stops_at_the_end_and_skips_specials(trained):
    tokenizer = trained["bpe"]
    (ids,) = tokenizer.encode(["the cat"])
    assert tokenizer.decode([tokenizer.start, *ids, tokenizer.end, *ids, tokenizer.pad]) == "the cat"
    assert tokenizer.decode([tokenizer.pad, *ids, tokenizer.unknown]) == "the cat"
    assert tokenizer.decode([]) == ""
    for outside in (tokenizer.size, -1):
        with pytest.raises(QkvError, match="not in this tokenizer's vocabulary"):
            tokenizer.decode([outside])


def test_labels_are_readable(trained):
    tokenizer = trained["bytes"]
    ids = [tokenizer.start, *tokenizer.encode(["a \né"])[0], tokenizer.end]
    assert tokenizer.tokens(ids) == ["<s>", "a", "▁", "\\n", "\\xc3", "\\xa9", "</s>"]
    assert trained["bpe"].tokens(trained["bpe"].encode(["the cat"])[0]) == ["▁the", "▁cat"]
    assert trained["characters"].tokens(trained["characters"].encode(["a b"])[0])[1] == "▁"


def test_subword_dropout_varies_the_cut_and_never_the_text(trained):
    tokenizer = trained["bpe"]
    plain = tokenizer.encode(CORPUS)
    dropped = tokenizer.encode(CORPUS, subword_dropout=0.5)
    assert [tokenizer.decode(row) for row in dropped] == CORPUS
    assert sum(map(len, dropped)) > sum(map(len, plain))
    assert len({tuple(row) for row in tokenizer.encode(CORPUS[:1] * 50, subword_dropout=0.5)}) > 1
    assert tokenizer.encode(CORPUS) == plain
    (apart,) = tokenizer.encode(["the cat"], subword_dropout=1.0)
    assert len(apart) == len(" the cat")


def test_subword_dropout_where_it_makes_no_sense(trained):
    with pytest.raises(QkvError, match="needs a bpe tokenizer"):
        trained["word"].encode(["x"], subword_dropout=0.1)
    with pytest.raises(QkvError, match="no probability"):
        trained["bpe"].encode(["x"], subword_dropout=1.5)


def test_what_is_no_text_is_named(trained):
    with pytest.raises(QkvError, match=r"'\\ud800' is no valid text"):
        trained["bpe"].encode(["fine", "\ud800"])
    with pytest.raises(QkvError, match="7 is no valid text"):
        trained["bpe"].encode(["fine", 7])


def test_wrong_training_settings():
    with pytest.raises(QkvError, match="no tokenizer kind 'bpee'"):
        TextTokenizer.train("bpee", CORPUS)
    with pytest.raises(QkvError, match="without any text"):
        TextTokenizer.train("bpe", [])
    with pytest.raises(QkvError, match="at least 260"):
        TextTokenizer.train("bpe", CORPUS, vocabulary=100)
    with pytest.raises(QkvError, match="always has 260"):
        TextTokenizer.train("bytes", CORPUS, vocabulary=300)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"model": {"type": "BPE"}}', b"[1, 2]"])
def test_broken_files(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(QkvError, match=r"not a.* tokenizer file"):
        TextTokenizer.load(tmp_path / "tokenizer.json")


def test_a_file_that_the_library_falls_over(tmp_path, trained):
    state = json.loads(trained["word"]._tokenizer.to_str())
    state["normalizer"] = {"type": "Precompiled"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(QkvError, match="not a whole tokenizer file"):
        TextTokenizer.load(tmp_path / "tokenizer.json")


def test_truncated_and_absent_files(tmp_path, trained):
    trained["bpe"].save(tmp_path / "tokenizer.json")
    whole = (tmp_path / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(QkvError, match="not a whole tokenizer file"):
        TextTokenizer.load(tmp_path / "tokenizer.json")
    with pytest.raises(QkvError, match="missing"):
        TextTokenizer.load(tmp_path / "absent.json")
    with pytest.raises(QkvError, match="cannot be written"):
        trained["bpe"].save(tmp_path / "absent" / "tokenizer.json")


def test_tokenizer_made_elsewhere(tmp_path):
    vocabulary = {"[UNK]": 0, "hello": 1, "[CLS]": 2, "[SEP]": 3, "[PAD]": 4, "world": 9}
    foreign = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    foreign.pre_tokenizer = pre_tokenizers.Whitespace()
    foreign.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    foreign.enable_padding(length=8)
    foreign.enable_truncation(3)
    foreign.save(str(tmp_path / "tokenizer.json"))
    tokenizer = TextTokenizer.load(tmp_path / "tokenizer.json")
    assert (tokenizer.pad, tokenizer.start, tokenizer.end, tokenizer.unknown, tokenizer.size) == (4, 2, 3, 0, 10)
    assert tokenizer.encode(["hello hello hello world"]) == [[1, 1, 1, 9]]
    assert tokenizer.decode([2, 1, 9, 3, 1]) == "hello world"


def test_a_role_that_is_absent_is_named_by_who_needs_it(tmp_path):
    Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>")).save(str(tmp_path / "tokenizer.json"))
    tokenizer = TextTokenizer.load(tmp_path / "tokenizer.json")
    assert tokenizer.unknown == 1
    assert not tokenizer.has("pad")
    for role in ("pad", "start", "end", "mask", "classifier", "separator"):
        with pytest.raises(QkvError, match=f"no {role} token"):
            getattr(tokenizer, role)
    assert tokenizer.with_roles(pad="a").pad == 0
    with pytest.raises(QkvError, match="no role 'padding'"):
        tokenizer.with_roles(padding="a")
    with pytest.raises(QkvError, match="'b' as pad"):
        tokenizer.with_roles(pad="b")


def test_a_copy_for_another_process_cuts_the_same() -> None:
    texts = ["x </s> y", "<pad>", "plain"]
    tokenizer = TextTokenizer.train("bpe", texts * 3, vocabulary=270)
    assert pickle.loads(pickle.dumps(tokenizer)).encode(texts) == tokenizer.encode(texts)
