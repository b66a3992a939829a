"""Tokenised shards: made once, the same whoever makes them, and never used where they are not what they should be."""

import gzip
import os
import pickle
import signal
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from qkv.data.documents import Documents, read_documents
from qkv.data.making_tokens import Made
from qkv.data.reading_tokenizer import for_writing
from qkv.data.source import Found, Source
from qkv.data.sources import sources_of
from qkv.data.token_files import gathering, write_token_file
from qkv.data.token_folder import is_token_folder, open_tokens, write_list
from qkv.data.token_shards import TokenShards, tokens_cache
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError, QkvWarning
from tests.data.corpus_files import FORMS, TEXTS, jsonl


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer.train("bpe", TEXTS, vocabulary=300)


@pytest.fixture
def shards(tmp_path: Path, tokenizer: TextTokenizer) -> TokenShards:
    return TokenShards(sources_of(jsonl(tmp_path, TEXTS), shard_bytes=700), tokenizer, tmp_path / "tokens")


def all_rows(shards: TokenShards) -> list[list[int]]:
    opened = [shards.documents(number).tokens for number in range(len(shards))]
    return [tokens[row] for tokens in opened for row in range(len(tokens))]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.glob("*.safetensors")}


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


def test_what_many_processes_make_is_what_one_makes(shards: TokenShards, tmp_path: Path) -> None:
    shards.prepare()
    parallel = TokenShards(shards.sources or [], shards.tokenizer, tmp_path / "parallel")
    told: list[int] = []
    parallel.prepare(workers=2, made=lambda number, made: told.append(number))
    assert contents(parallel.folder) == contents(shards.folder)
    assert sorted(told) == list(range(len(shards)))


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


@pytest.mark.parametrize("workers", [1, 2])
def test_a_corrupted_source_is_told_by_name(workers: int, tmp_path: Path, tokenizer: TextTokenizer) -> None:
    (tmp_path / "good.jsonl").write_text('{"text": "good"}\n')
    whole = gzip.compress(os.urandom(4000))
    (tmp_path / "torn.jsonl.gz").write_bytes(whole[:2000])
    shards = TokenShards(sources_of(tmp_path), tokenizer, tmp_path / "tokens")
    with pytest.raises(QkvError, match=r"The shard torn\.jsonl\.gz cannot be tokenised\. .*cannot be decompressed"):
        shards.prepare(workers=workers)
    assert not list((tmp_path / "tokens").glob("*.partial"))


class Slow(Source):
    """A source that tells when it is being read, and then goes on for ever."""

    name, size = "slow stretch", 1 << 40

    def __init__(self, sign: Path, kill: bool) -> None:
        self.sign, self.kill = sign, kill

    def identity(self) -> dict[str, object]:
        return {"kind": "slow"}

    def stamp(self) -> str:
        return ""

    def read(self) -> Iterator[Found]:
        self.sign.touch()
        if self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        while self.sign.exists():
            time.sleep(0.01)
        yield "done"


def test_a_process_that_dies_is_told_with_its_shard(shards: TokenShards, tmp_path: Path) -> None:
    sources = [*(shards.sources or [])[:2], Slow(tmp_path / "sign", kill=True)]
    with pytest.raises(QkvError, match="made the tokens of slow stretch died"):
        TokenShards(sources, shards.tokenizer, shards.folder).prepare(workers=2)


def test_a_process_that_hangs_is_told_with_its_shard(shards: TokenShards, tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    hanging = TokenShards([Slow(sign, kill=False), *(shards.sources or [])[:1]], shards.tokenizer, shards.folder)
    told: list[str] = []

    def tell(message: Warning | str, *_: object, **__: object) -> None:
        told.append(str(message))
        if sign.exists():
            sign.unlink()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = tell
        hanging.prepare(workers=2, patience=0.2)
    assert any(line.startswith("The tokens of slow stretch are still being made") for line in told)


def prepare(shards: TokenShards) -> None:
    shards.prepare()


def test_two_processes_may_make_the_same_shards_at_once(shards: TokenShards, tmp_path: Path) -> None:
    spawned = get_context("spawn")
    processes = [spawned.Process(target=prepare, args=(shards,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    alone = TokenShards(shards.sources or [], shards.tokenizer, tmp_path / "alone")
    alone.prepare()
    assert contents(shards.folder) == contents(alone.folder)
    assert not list(shards.folder.glob("*.partial"))


def test_a_killed_process_leaves_nothing_that_is_used(shards: TokenShards, tmp_path: Path) -> None:
    """Killed for real between two shards and in the midst of one; what goes on makes the same files."""
    sign = tmp_path / "sign"
    sources = [*(shards.sources or []), Slow(sign, kill=False)]
    begun = TokenShards(sources, shards.tokenizer, shards.folder)
    process = get_context("spawn").Process(target=prepare, args=(begun,))
    process.start()
    while not sign.exists():
        assert process.is_alive()
        time.sleep(0.01)
    process.kill()
    process.join()
    sign.unlink()
    assert len(contents(shards.folder)) == len(sources) - 1
    shards.file(0).unlink()
    torn = shards.folder / f".{shards.file(0).name}.1-abc.partial"
    torn.write_bytes(b"torn")
    os.utime(torn, (1, 1))
    begun.file(1).write_bytes(begun.file(1).read_bytes()[:100])
    alone = TokenShards(shards.sources or [], shards.tokenizer, tmp_path / "alone")
    alone.prepare()
    with pytest.warns(QkvWarning, match="made anew"):
        shards.prepare()
    assert {name: content for name, content in contents(shards.folder).items() if name in contents(alone.folder)} == (
        contents(alone.folder)
    )
    assert not torn.exists()


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


def test_ray_makes_the_same_files(shards: TokenShards, tmp_path: Path) -> None:
    from qkv.data.ray_tokens import tokenize_with_ray

    made: list[Made] = []
    elsewhere = TokenShards(shards.sources or [], shards.tokenizer, tmp_path / "ray")
    try:
        import ray
    except ImportError:
        with pytest.raises(QkvError, match=r"qkv\[ray\]"):
            tokenize_with_ray(elsewhere)
        return
    ray.init(num_cpus=2, include_dashboard=False)
    try:
        tokenize_with_ray(elsewhere, lambda number, one: made.append(one))
    finally:
        ray.shutdown()
    shards.prepare()
    assert contents(elsewhere.folder) == contents(shards.folder)
    assert sum(one.documents for one in made) == len(TEXTS)


def test_memory_does_not_grow_with_a_source(
    tmp_path: Path, tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Megabytes of text in one shard pass through buffers that do not depend on how much it is."""
    monkeypatch.setattr("qkv.data.making_tokens.ENCODED_AT_ONCE", 8)
    size = jsonl(tmp_path, [" ".join(TEXTS)] * 1200).stat().st_size
    assert size > 3_000_000
    shards = TokenShards(sources_of(tmp_path / "corpus.jsonl"), tokenizer, tmp_path / "tokens")
    most = []
    for work in (shards.prepare, lambda: shards.documents(0).tokens[1199]):
        tracemalloc.start()
        work()
        most.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert shards.file(0).stat().st_size > 1_500_000
    assert most[0] < size / 3
    assert most[1] < size / 4
