"""Tokenised shards: made once, the same whoever makes them, and never used where they are not what they should be."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from qkv.data.documents import Documents, read_documents
from qkv.data.reading_tokenizer import for_writing
from qkv.data.sources import sources_of
from qkv.data.token_shards import TokenShards, tokens_cache
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError, QkvWarning
from tests.data.corpus_files import FORMS, TEXTS, all_rows, contents, jsonl


@pytest.mark.parametrize("form", FORMS)
def test_shards_hold_what_reading_it_whole_gives(form: str, tmp_path: Path, tokenizer: TextTokenizer) -> None:
    file = FORMS[form](tmp_path, TEXTS)
    shards = TokenShards(sources_of(file, shard_bytes=900, blank_lines_divide=True), tokenizer, tmp_path / "tokens")
    whole = Documents.from_texts(read_documents(file, blank_lines_divide=True).texts, tokenizer)
    assert all_rows(shards) == [whole.tokens[row] for row in range(len(whole))]
    lengths = [shards.documents(number).bytes for number in range(len(shards))]
    assert np.concatenate(lengths).tolist() == whole.bytes.tolist()


def test_what_is_made_is_not_made_again(shards: TokenShards, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = all_rows(shards)
    before = contents(shards.folder)
    again = TokenShards(shards.sources or [], shards.tokenizer, shards.folder)
    monkeypatch.setattr("qkv.data.token_shards.make_tokens", None)
    monkeypatch.setattr(type(again.sources[0]), "read", None)  # type: ignore[index]  # not even read
    again.prepare()
    assert all_rows(again) == rows
    assert contents(shards.folder) == before
    assert again.fingerprint == shards.fingerprint


def test_a_fingerprint_tells_corpora_tokenizers_and_divisions_apart(shards: TokenShards, tmp_path: Path) -> None:
    file, cut = tmp_path / "corpus.jsonl", shards.tokenizer
    other = TextTokenizer.train("bpe", TEXTS, vocabulary=290)
    names = {
        shards.fingerprint,
        TokenShards(sources_of(file, shard_bytes=800), cut).fingerprint,
        TokenShards(sources_of(file, shard_bytes=700), other).fingerprint,
        TokenShards(sources_of(file, shard_bytes=700, column="id"), cut).fingerprint,
        TokenShards(sources_of(jsonl(tmp_path, TEXTS[1:]), shard_bytes=700), cut).fingerprint,
    }
    assert len(names) == 5
    jsonl(tmp_path, TEXTS)
    framed = for_writing(cut)  # puts something around texts, and cuts them the same
    assert framed.fingerprint() != cut.fingerprint()
    assert TokenShards(sources_of(file, shard_bytes=700), framed).keys == shards.keys


def test_a_corpus_that_grows_keeps_its_shards(shards: TokenShards, tmp_path: Path) -> None:
    shards.prepare()
    (tmp_path / "more").mkdir()
    for number, name in enumerate(("a", "b")):
        jsonl(tmp_path, TEXTS[number::2]).rename(tmp_path / "more" / f"{name}.jsonl")
    one = TokenShards(sources_of(tmp_path / "more"), shards.tokenizer, shards.folder)
    (tmp_path / "more" / "c.txt").write_text("new")
    two = TokenShards(sources_of(tmp_path / "more"), shards.tokenizer, shards.folder)
    assert two.keys[:2] == one.keys


@pytest.mark.parametrize("part", ["length", "checksum", "notes", "offsets", "bytes", "ids", "cut", "empty", "foreign"])
def test_a_damaged_shard_is_told_of_and_made_anew(part: str, shards: TokenShards) -> None:
    rows = all_rows(shards)
    file = shards.file(1)
    whole = file.read_bytes()
    data = 8 + int.from_bytes(whole[:8], "little")
    count = len(shards.documents(1))
    places = {
        "length": 0, "checksum": whole.index(b'"checksum": "') + 14, "notes": whole.index(b'"source"') + 12,
        "offsets": data + 8, "bytes": data + 8 * (count + 1), "ids": len(whole) - 1,
    }  # fmt: skip
    if part in places:
        place = places[part]
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
    else:
        file.write_bytes({"cut": whole[:-3], "empty": b"", "foreign": shards.file(0).read_bytes()}[part])
    with pytest.warns(QkvWarning, match=rf"{file.name} .*\. The shard corpus\.jsonl bytes \d+ to \d+ is made anew"):
        assert shards.documents(1).tokens[0] == rows[len(shards.documents(0))]
    assert file.read_bytes() == whole


def test_texts_that_changed_are_found_though_the_file_looks_the_same(shards: TokenShards, tmp_path: Path) -> None:
    """Equal in size and in the bytes that are sampled, and written to."""
    file = tmp_path / "corpus.jsonl"
    big = [f"{number} " + "word " * 400 for number in range(40)]
    jsonl(tmp_path, big)
    make: Callable[[], TokenShards] = lambda: TokenShards(  # noqa: E731
        sources_of(file, shard_bytes=30_000), shards.tokenizer, shards.folder
    )
    first = make()
    first.prepare()
    content = file.read_bytes()
    place = content.index(b"word", len(content) // 3)
    file.write_bytes(content[:place] + b"WORD" + content[place + 4 :])
    os.utime(file, ns=(5, 5))
    second = make()
    assert second.keys == first.keys
    with pytest.warns(QkvWarning, match="was made from other texts than there are now"):
        second.prepare()
    os.utime(file, ns=(7, 7))  # written to, and the same texts: nothing is made or told
    make().prepare()


def test_bad_rows_are_kept_beside_the_tokens(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"text": "good"}\n' + "{broken\n" * 30)
    for _ in range(2):  # when it is made, and when it is there
        problems, count = TokenShards(sources_of(file), tokenizer, tmp_path / "tokens").problems(0)
        assert (count, len(problems)) == (30, 20)
        assert str(problems[0]).startswith("x.jsonl line 2: invalid JSON")


def test_a_corpus_without_a_document_is_an_error(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    (tmp_path / "x.jsonl").write_text("{broken\n")
    shards = TokenShards(sources_of(tmp_path / "x.jsonl"), tokenizer, tmp_path / "tokens")
    with pytest.raises(
        QkvError, match=r"no document in the corpus; the first problem is x\.jsonl line 1: invalid JSON"
    ):
        shards.prepare()
    assert len(shards.documents(0)) == 0
    with pytest.raises(QkvError, match="at least one source"):
        TokenShards([], tokenizer)


def test_the_cache_is_where_caches_are(shards: TokenShards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QKV_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert tokens_cache() == tmp_path / "caches" / "qkv" / "tokens"
    made = TokenShards(shards.sources or [], shards.tokenizer)
    made.prepare([0])
    assert tokens_cache() in made.file(0).parents
    assert made.file(0).exists()


def test_a_folder_that_cannot_be_written_is_said(shards: TokenShards, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(QkvError, match=r"cannot be written to .*taken"):
        TokenShards(shards.sources or [], shards.tokenizer, tmp_path / "taken" / "x").prepare()
    with pytest.raises(QkvError, match="at least 1"):
        shards.prepare(workers=0)
