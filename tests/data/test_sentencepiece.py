"""SentencePiece files: every token as the SentencePiece library has it."""

import unicodedata
from pathlib import Path

import pytest
import sentencepiece

from qkv.data.sentencepiece import BYTE, CONTROL, UNKNOWN, read_sentencepiece, sentencepiece_tokenizer
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from tests.data.published_folders import CORPUS, sentencepiece_bytes
from tests.data.torture import MEGABYTE, TORTURE, random_strings

MODELS = Path(__file__).parents[2] / "checkpoints" / "sentencepiece-models"
TEXTS = [*CORPUS[:6], *TORTURE, *random_strings(200), "<0x41> is no byte"]
SETTINGS = {
    "unigram": {},
    "bpe": {"kind": "bpe"},
    "bytes": {"kind": "bpe", "size": 500, "byte_fallback": True},
    "as Llama": {
        "kind": "bpe",
        "size": 500,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "split_digits": True,
    },
    "as ALBERT": {"control_symbols": ["[CLS]", "[SEP]"], "user_defined_symbols": ["(", ")", ".", "–"], "pad_id": 3},
    "no space before": {"add_dummy_prefix": False},
}


def check(content: bytes, file: Path) -> None:
    theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
    model = read_sentencepiece(file)
    numbers = range(theirs.get_piece_size())
    assert [piece.text for piece in model.pieces] == [theirs.id_to_piece(number) for number in numbers]
    assert [piece.score for piece in model.pieces] == [theirs.get_score(number) for number in numbers]
    assert [piece.kind == CONTROL for piece in model.pieces] == [theirs.is_control(number) for number in numbers]
    assert [piece.kind == UNKNOWN for piece in model.pieces] == [theirs.is_unknown(number) for number in numbers]
    assert [piece.kind == BYTE for piece in model.pieces] == [theirs.is_byte(number) for number in numbers]
    made = sentencepiece_tokenizer(model)
    tokenizer = TextTokenizer(made)
    for text in TEXTS:
        marked = any(unicodedata.category(character).startswith("M") for character in text)
        if marked and made.normalizer.normalize_str(text) != theirs.normalize(text):
            continue  # the tokenizers library loses marks on characters that the table of the model replaces
        (ids,) = tokenizer.encode([text])
        assert ids == theirs.encode(text), text
        if theirs.unk_id() not in ids:
            assert tokenizer.decode(ids) == theirs.decode(ids), text


@pytest.mark.parametrize("name", SETTINGS)
def test_every_token_is_that_of_the_library(tmp_path, name):
    content = sentencepiece_bytes(**SETTINGS[name])
    (tmp_path / "tokenizer.model").write_bytes(content)
    check(content, tmp_path / "tokenizer.model")


def test_a_saved_tokenizer_cuts_the_same(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_bytes())
    tokenizer = TextTokenizer(sentencepiece_tokenizer(read_sentencepiece(tmp_path / "tokenizer.model")))
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = TextTokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.encode(TEXTS) == tokenizer.encode(TEXTS)
    assert loaded.roles == tokenizer.roles == {"start": "<s>", "end": "</s>", "unknown": "<unk>"}


def test_control_pieces_are_matched_only_where_that_is_allowed(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_bytes())
    tokenizer = TextTokenizer(sentencepiece_tokenizer(read_sentencepiece(tmp_path / "tokenizer.model")))
    assert tokenizer.end in tokenizer.encode(["the</s>"], allow_special=True)[0]
    (ids,) = tokenizer.encode(["the</s>"])
    assert tokenizer.end not in ids
    assert tokenizer.decode(ids) == "the</s>"


@pytest.mark.parametrize("kind", ["word", "char"])
def test_models_of_whole_words_and_characters_are_refused(tmp_path, kind):
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_bytes(kind))
    with pytest.raises(QkvError, match="whole words or characters"):
        read_sentencepiece(tmp_path / "tokenizer.model")


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, b"\x0a\x05abc", b"\x0b\x00", b"\x08\x01", b"<html></html>"])
def test_broken_files(tmp_path, content):
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(QkvError, match=r"is not a .*SentencePiece model"):
        read_sentencepiece(tmp_path / "tokenizer.model")


def test_truncated_and_absent_files(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_bytes()[:1001])
    with pytest.raises(QkvError, match="not a whole SentencePiece model"):
        read_sentencepiece(tmp_path / "tokenizer.model")
    with pytest.raises(QkvError, match="missing"):
        read_sentencepiece(tmp_path / "absent.model")


def test_a_broken_table_of_characters(tmp_path):
    content = sentencepiece_bytes(normalization_rule_name="identity")
    broken = b"\x1a\x05\x12\x03abc"  # a normaliser whose table is three bytes
    (tmp_path / "tokenizer.model").write_bytes(content + broken)
    with pytest.raises(QkvError, match="table of characters is broken"):
        sentencepiece_tokenizer(read_sentencepiece(tmp_path / "tokenizer.model"))


@pytest.mark.slow
@pytest.mark.skipif(not MODELS.exists(), reason="needs `make checkpoints`")
@pytest.mark.parametrize("name", ["test_model", "test_bpe_model", "test_ja_model"])
def test_the_models_that_sentencepiece_is_tested_with(name):
    file = MODELS / f"{name}.model"
    check(file.read_bytes(), file)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(file))
    tokenizer = TextTokenizer(sentencepiece_tokenizer(read_sentencepiece(file)))
    lines = (MODELS / "botchan.txt").read_text(encoding="utf-8").splitlines()
    assert tokenizer.encode(lines) == theirs.encode(lines)
    assert tokenizer.encode([MEGABYTE]) == [theirs.encode(MEGABYTE)]
