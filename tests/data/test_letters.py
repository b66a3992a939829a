"""The vocabulary of a CTC model, against the reference's tokenizer."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import Wav2Vec2CTCTokenizer

from qkv.data.letters import ADDED_FILE, NOTES_FILE, VOCABULARY_FILE, Letters, read_letters, write_letters
from qkv.errors import QkvError

VOCABULARY = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "|": 4, "E": 5, "T": 6, "A": 7, "'": 8}


def published(folder: Path, **options: Any) -> Wav2Vec2CTCTokenizer:
    (folder / VOCABULARY_FILE).write_text(json.dumps(VOCABULARY))
    tokenizer = Wav2Vec2CTCTokenizer(folder / VOCABULARY_FILE, **options)
    tokenizer.save_pretrained(folder)
    return tokenizer


@pytest.mark.parametrize("options", [{}, {"do_lower_case": True}, {"replace_word_delimiter_char": "_"}])
@pytest.mark.parametrize("text", ["", "A", "TEA AT TEA", "A'T", "EAT MEAT", "tea"])
def test_texts_are_cut_and_joined_as_the_reference_does(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    theirs, ours = published(tmp_path, **options), read_letters(tmp_path)
    ids = ours.encode(text)
    assert ids == theirs(text).input_ids
    assert ours.decode(ids) == theirs.decode(ids, group_tokens=False)


def test_what_is_written_the_reference_reads(tmp_path: Path) -> None:
    letters = Letters.of_texts(["tea at", "ten"])
    assert letters.tokens == ("<pad>", "<unk>", "|", "a", "e", "n", "t")
    write_letters(tmp_path, letters)
    assert read_letters(tmp_path) == letters
    theirs = Wav2Vec2CTCTokenizer.from_pretrained(tmp_path)
    assert theirs("tea x").input_ids == letters.encode("tea x") == [6, 4, 3, 2, 1]
    assert letters.decode(letters.encode("  tea   at\n")) == "tea at"


def test_a_letter_that_is_not_known_is_refused_where_nothing_stands_for_it() -> None:
    letters = Letters(("-", "a", "b"))
    assert letters.encode("ab") == [1, 2]
    for text, match in [("ac", "letter 'c'"), ("a-", "letter '-'"), ("a b", "nothing to stand between")]:
        with pytest.raises(QkvError, match=match):
            letters.encode(text)
    with pytest.raises(QkvError, match="stands for the space"):
        Letters.of_texts(["a|b"])
    with pytest.raises(QkvError, match="several letters"):
        Letters(("-", "aː")).encode("a")
    for wrong in (("a", "a"), ()):
        with pytest.raises(QkvError, match="each of them once"):
            Letters(wrong)
    with pytest.raises(QkvError, match="none has the number 5"):
        Letters(("-", "a"), blank=5)


@pytest.mark.parametrize(
    ("vocabulary", "notes", "match"),
    [
        ({"a": 0, "b": 2}, {}, "without a gap"),
        ({"a": 0, "b": 0}, {}, "without a gap"),
        ({"a": "0"}, {}, "without a gap"),
        ([], {}, "without a gap"),
        ({"a": 0}, {}, "lacks '<pad>'"),
        ({"eng": {"a": 0}}, {}, "several languages"),
        (VOCABULARY, {"target_lang": "eng"}, "several languages"),
        (VOCABULARY, {"tokenizer_class": "BertTokenizer"}, "BertTokenizer"),
        (VOCABULARY, {"phonemizer_lang": "en"}, "phonemizer_lang"),
        (VOCABULARY, [], "an object"),
    ],
)
def test_files_that_are_not_understood_are_refused(tmp_path: Path, vocabulary: Any, notes: Any, match: str) -> None:
    (tmp_path / VOCABULARY_FILE).write_text(json.dumps(vocabulary))
    (tmp_path / NOTES_FILE).write_text(json.dumps(notes))
    with pytest.raises(QkvError, match=match):
        read_letters(tmp_path)


def test_added_tokens_follow_the_vocabulary(tmp_path: Path) -> None:
    """As the reference writes a vocabulary without <s> and </s>."""
    (tmp_path / VOCABULARY_FILE).write_text(json.dumps({"[PAD]": 3, "[UNK]": 2, "|": 1, "a": 0}))
    options = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    theirs = Wav2Vec2CTCTokenizer(tmp_path / VOCABULARY_FILE, **options)
    theirs.save_pretrained(tmp_path)
    if not (tmp_path / ADDED_FILE).exists():  # newer versions keep them elsewhere
        (tmp_path / ADDED_FILE).write_text(json.dumps({"<s>": 4, "</s>": 5}))
    ours = read_letters(tmp_path)
    assert ours.tokens == ("a", "|", "[UNK]", "[PAD]", "<s>", "</s>")
    assert (ours.blank, ours.space, ours.unknown) == (3, 1, 2)
    assert ours.decode([0, 4, 1, 0]) == theirs.decode([0, 4, 1, 0])


def test_special_tokens_may_be_written_as_objects(tmp_path: Path) -> None:
    (tmp_path / VOCABULARY_FILE).write_text(json.dumps(VOCABULARY))
    (tmp_path / NOTES_FILE).write_text(json.dumps({"pad_token": {"content": "<pad>", "lstrip": True}}))
    assert read_letters(tmp_path).blank == 0
