"""Tokens without their texts: a folder is used as it was made, or refused."""

import pickle
from pathlib import Path

import pytest

from qkv.data.token_files import gathering, write_token_file
from qkv.data.token_folder import is_token_folder, open_tokens, write_list
from qkv.data.token_shards import TokenShards
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from tests.data.corpus_files import TEXTS, all_rows


def test_a_folder_can_be_used_without_its_texts(shards: TokenShards, tmp_path: Path) -> None:
    rows = all_rows(shards)
    assert write_list(shards) == 0
    assert is_token_folder(shards.folder)
    (tmp_path / "corpus.jsonl").unlink()
    moved = shards.folder.rename(tmp_path / "moved")
    found = open_tokens(moved)
    assert all_rows(found) == rows
    assert (found.fingerprint, found.name(0)) == (shards.fingerprint, shards.name(0))
    assert pickle.loads(pickle.dumps(found)).documents(0).tokens[0] == rows[0]
    found.prepare()
    found.file(0).write_bytes(b"torn")
    with pytest.raises(QkvError, match=r"corpus\.jsonl bytes 0 to \d+ cannot be used: .* Tokenise it again"):
        open_tokens(moved).documents(0)
    found.file(0).unlink()
    with pytest.raises(QkvError, match=r"is not in .*moved yet"):
        open_tokens(moved).documents(0)


def test_a_foreign_folder_with_odd_notes_is_refused(shards: TokenShards) -> None:
    """Its checksums are right and its notes are not: whoever made it did not use this library."""
    shards.prepare()
    write_list(shards)
    for odd in ({}, {"problems": "[[1]]", "problem_count": "0"}, {"problems": "[]", "problem_count": "many"}):
        with gathering(shards.folder, 300) as gathered:
            gathered.add([[1, 2]], [3])
            write_token_file(shards.file(0), gathered, {"key": shards.keys[0], **odd})
        with pytest.raises(QkvError, match="its notes are not as they should be"):
            open_tokens(shards.folder).documents(0)


def test_a_list_that_was_edited_is_refused(shards: TokenShards) -> None:
    write_list(shards)
    file = shards.folder / "tokens.json"
    whole = file.read_text()
    key = shards.keys[0]
    for content, words in (
        ("[]", "not a list of tokenised"),
        (whole.replace('"version": 1', '"version": 9'), "version 9"),
        (whole.replace(key, "../../secret"), "not a list of tokenised"),
        (whole.replace(key, key[::-1]), "do not belong together"),
        (whole[:50], "not whole JSON"),
    ):
        file.write_text(content)
        with pytest.raises(QkvError, match=words):
            open_tokens(shards.folder)
    with pytest.raises(QkvError, match="holds no tokens"):
        open_tokens(shards.folder.parent)


def test_a_folder_is_not_shared_by_two_tokenizers(shards: TokenShards) -> None:
    write_list(shards)
    other = TextTokenizer.train("bpe", TEXTS, vocabulary=290)
    with pytest.raises(QkvError, match="another tokenizer"):
        write_list(TokenShards(shards.sources or [], other, shards.folder))
    fewer = TokenShards((shards.sources or [])[:-1], shards.tokenizer, shards.folder)
    assert write_list(fewer) == 1
