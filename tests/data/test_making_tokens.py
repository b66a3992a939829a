"""Shards made by processes, of which some die, hang, are killed or race: the same files, or a sentence."""

import gzip
import os
import platform
import signal
import time
import tracemalloc
import warnings
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest

from qkv.data.source import Found, Source
from qkv.data.sources import sources_of
from qkv.data.token_shards import TokenShards
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError, QkvWarning
from tests.data.corpus_files import TEXTS, contents, jsonl


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
    ours, old, theirs = (
        shards.folder / f".{shards.file(0).name}.{host}-1-abc.partial" for host in (platform.node(), "old", "another")
    )
    for torn in (ours, old, theirs):
        torn.write_bytes(b"torn")
    os.utime(old, (1, 1))
    begun.file(1).write_bytes(begun.file(1).read_bytes()[:100])
    alone = TokenShards(shards.sources or [], shards.tokenizer, tmp_path / "alone")
    alone.prepare()
    with pytest.warns(QkvWarning, match="made anew"):
        shards.prepare()
    assert {name: content for name, content in contents(shards.folder).items() if name in contents(alone.folder)} == (
        contents(alone.folder)
    )
    assert [torn.exists() for torn in (ours, old, theirs)] == [False, False, True]  # where somebody may be writing


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


def test_what_many_processes_make_is_what_one_makes(shards: TokenShards, tmp_path: Path) -> None:
    shards.prepare()
    parallel = TokenShards(shards.sources or [], shards.tokenizer, tmp_path / "parallel")
    told: list[int] = []
    parallel.prepare(workers=2, made=lambda number, made: told.append(number))
    assert contents(parallel.folder) == contents(shards.folder)
    assert sorted(told) == list(range(len(shards)))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_corrupted_source_is_told_by_name(workers: int, tmp_path: Path, tokenizer: TextTokenizer) -> None:
    (tmp_path / "good.jsonl").write_text('{"text": "good"}\n')
    whole = gzip.compress(os.urandom(4000))
    (tmp_path / "torn.jsonl.gz").write_bytes(whole[:2000])
    shards = TokenShards(sources_of(tmp_path), tokenizer, tmp_path / "tokens")
    with pytest.raises(QkvError, match=r"The shard torn\.jsonl\.gz cannot be tokenised\. .*cannot be decompressed"):
        shards.prepare(workers=workers)
    assert {file.name for file in (tmp_path / "tokens").glob("*.safetensors")} <= {shards.file(0).name}
