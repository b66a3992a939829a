"""Rows of shards on disk: each token once an epoch, the same however they are made, gone on with from any place."""

import gzip
import json
import os
import re
import signal
import weakref
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from qkv.data.batches import Batches
from qkv.data.documents import Documents
from qkv.data.packing import LanguageBatch, LanguageRows, pack, stream
from qkv.data.plan import RowCount, TokenBudget
from qkv.data.sources import sources_of
from qkv.data.streaming import StreamedRows, Windows, chances, divided, held_out_of
from qkv.data.token_rows import TokenRows
from qkv.data.token_shards import TokenShards
from qkv.errors import QkvError
from tests.data.some_shards import byte_tokenizer, some_shards, write_corpus

END = 1  # of a text; any id does
PACKED = partial(pack, length=32, end=END)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> TokenShards:
    return some_shards(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> TokenShards:
    return some_shards(tmp_path_factory.mktemp("few"), each=2)


def batches_of(shards: TokenShards, *, prefetch: int = 4, workers: int = 0, seed: int = 3, **how) -> Batches:
    windows = Windows(shards, how.pop("make", PACKED), seed=seed, **{"window": 2, **how})
    return Batches(StreamedRows(windows, workers), RowCount(4), seed=seed, prefetch=prefetch)


def same(one: LanguageBatch, other: LanguageBatch) -> bool:
    return torch.equal(one.ids, other.ids) and torch.equal(one.documents, other.documents)


def tokens_of(batches: list[LanguageBatch]) -> list[int]:
    """The tokens that are predicted, sorted."""
    return sorted(token for batch in batches for token in batch.wanted[0][batch.wanted[1]].tolist())


@pytest.mark.parametrize("make", [PACKED, partial(stream, length=32, end=END)])
def test_an_epoch_predicts_every_token_once(shards: TokenShards, make) -> None:
    documents = Documents.joined([shards.documents(number) for number in range(len(shards))])
    tokens = int(documents.tokens.lengths.sum())
    # The first token of each document has none before it, and its end is predicted; a stream begins with each window.
    expected = tokens if make is PACKED else tokens + len(documents) - 3
    batches = batches_of(shards, make=make)
    for _ in range(2):
        epoch = list(batches)
        assert sum(batch.predicted for batch in epoch) == expected
        assert max(len(batch.ids) for batch in epoch) == 4
    one, other = list(batches_of(shards)), list(batches_of(shards, seed=4))
    assert tokens_of(one) == tokens_of(other)
    assert sum(batch.bytes for batch in one) == sum(batch.bytes for batch in other) == documents.bytes.sum()
    assert not all(map(same, one, other))


def test_an_epoch_has_every_shard_once_in_an_order_of_its_own(shards: TokenShards) -> None:
    windows = Windows(shards, PACKED, window=2, seed=1)
    assert windows.count == 3
    orders = [[n for s in range(3) for n in windows.shards_of(3 * epoch + s)] for epoch in range(3)]
    assert all(sorted(order) == list(range(5)) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    assert all(len(windows.shards_of(number)) <= 2 for number in range(9))


@pytest.mark.parametrize("prefetch", [0, 1, 7])
def test_batches_do_not_depend_on_how_far_ahead_they_are_made(shards: TokenShards, prefetch: int) -> None:
    expected, found = batches_of(shards), batches_of(shards, prefetch=prefetch)
    assert all(map(same, [*expected, *expected], [*found, *found]))


def test_batches_do_not_depend_on_the_processes_that_make_them(shards: TokenShards) -> None:
    expected = list(batches_of(shards))
    found = list(batches_of(shards, workers=2))
    assert len(found) == len(expected)
    assert all(map(same, found, expected))


@pytest.mark.parametrize("parts", [1, 3])
def test_going_on_from_every_place_gives_the_same_batches(few: TokenShards, parts: int) -> None:
    """Across windows and into the second epoch; nothing of another window is made."""
    whole = batches_of(few)
    whole.in_parts(parts)
    places, expected = [whole.state_dict()], []
    for _ in range(2):
        for batch in whole:
            expected.append(batch)
            places.append(json.loads(json.dumps(whole.state_dict())))
    assert {place["section"] for place in places} == {0, 1, 2}
    for stop in range(0, len(expected), 1 if parts == 1 else 3):
        after = batches_of(few, prefetch=stop % 3)
        after.load_state_dict(places[stop])
        rest = [batch for _ in range(2 - after.epoch) for batch in after]
        assert len(rest) == len(expected) - stop
        assert all(map(same, rest, expected[stop:]))


class Counting:
    """Shards that remember which of them were opened."""

    def __init__(self, shards: TokenShards) -> None:
        self.shards, self.opened = shards, []
        self.name, self.problems = shards.name, shards.problems

    def __len__(self) -> int:
        return len(self.shards)

    def documents(self, number: int) -> Documents:
        self.opened.append(number)
        return self.shards.documents(number)


def test_going_on_opens_the_window_and_the_one_behind_it(shards: TokenShards) -> None:
    counting = Counting(shards)
    batches = Batches(StreamedRows(Windows(counting, PACKED, window=1, seed=3)), RowCount(4), seed=3, prefetch=0)
    batches.load_state_dict({**batches.state_dict(), "epoch": 7, "section": 2})
    next(iter(batches))
    order = Windows(shards, PACKED, window=1, seed=3)
    expected = [order.shards_of(7 * 5 + section)[0] for section in (2, 3)]
    assert counting.opened[:1] == expected[:1]
    assert set(counting.opened) <= set(expected), "the second is made in the background"


class Watched(StreamedRows):
    """Rows that are known as long as somebody holds them."""

    def rows(self, epoch: int, section: int) -> LanguageRows:
        made = super().rows(epoch, section)
        self.alive.append(weakref.ref(made))
        return made


def test_two_windows_are_held_at_most(shards: TokenShards) -> None:
    rows = Watched(Windows(shards, PACKED, window=1, seed=3))
    rows.alive = []
    batches = Batches(rows, RowCount(4), seed=3, prefetch=0)
    for _ in range(2):
        for _ in batches:
            assert sum(reference() is not None for reference in rows.alive) <= 2
    assert len(rows.alive) >= 10


def test_held_out_documents_are_the_same_wherever_they_lie(shards: TokenShards) -> None:
    documents = Documents.joined([shards.documents(number) for number in range(len(shards))])
    kept, held = divided(documents, 0.3)
    assert len(kept) + len(held) == len(documents)
    assert 0.1 < len(held) / len(documents) < 0.5
    turned = documents.chosen(np.arange(len(documents))[::-1])
    assert sorted(divided(turned, 0.3)[1].bytes) == sorted(held.bytes)
    again = divided(held, 0.3)
    assert (len(again[0]), len(again[1])) == (0, len(held))
    assert len(divided(documents, 0.0)[1]) == 0
    seen = Batches(StreamedRows(Windows(shards, PACKED, hold_out=0.3)), TokenBudget(400))
    assert sum(batch.bytes for batch in seen) == kept.bytes.sum()


def test_chances_are_spread_evenly() -> None:
    rows = [[number % 7, number // 7 % 11, number // 77] for number in range(7 * 11 * 40)]
    found = chances(TokenRows.from_lists(rows, 0))
    assert len(set(found)) == len(rows)
    assert all(250 < count < 370 for count in np.histogram(found, 10, (0, 1))[0])


def test_documents_to_validate_on_are_few(shards: TokenShards) -> None:
    every = held_out_of(shards, 0.3, 10**9, window=5)
    few = held_out_of(shards, 0.3, 600, window=5)
    assert 1 <= len(few) < len(every)
    assert few.tokens.lengths.sum() <= 600
    assert len(held_out_of(shards, 0.3, 1, window=5)) == 1
    assert len(held_out_of(shards, 0.0, 600)) == 0


def test_a_window_of_which_everything_is_held_out_is_passed_over(shards: TokenShards) -> None:
    batches = batches_of(shards, window=1, hold_out=0.999)
    assert sum(batch.predicted for batch in batches) >= 0
    assert list(batches_of(shards, hold_out=1.0)) == []


def test_a_shard_that_cannot_be_read_is_named_and_the_run_goes_on_when_it_is_mended(tmp_path: Path) -> None:
    texts = write_corpus(tmp_path / "texts", each=3)
    for file in texts.iterdir():
        (texts / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    unbroken = TokenShards(sources_of(texts), byte_tokenizer(), tmp_path / "unbroken")
    expected = [batch.ids for batch in batches_of(unbroken, window=1)]
    broken = Windows(unbroken, PACKED, window=1, seed=3).shards_of(2)[0]
    file = texts / unbroken.name(broken)
    good = file.read_bytes()
    file.write_bytes(good[: len(good) // 2])
    shards = TokenShards(sources_of(texts), byte_tokenizer(), tmp_path / "tokens")
    batches, found = batches_of(shards, window=1), []
    with pytest.raises(QkvError, match=re.escape(shards.name(broken))) as raised:
        found += [batch.ids for batch in batches]
    assert "\n" not in str(raised.value)
    place = batches.state_dict()
    assert place["section"] == 2
    file.write_bytes(good)
    after = batches_of(TokenShards(sources_of(texts), byte_tokenizer(), tmp_path / "tokens"), window=1)
    after.load_state_dict(place)
    rest = [batch.ids for batch in after]
    assert 0 < len(rest) < len(expected)
    assert all(map(torch.equal, rest, expected[-len(rest) :]))


class Deadly(Counting):
    """A shard at which a process is killed, as a system short of memory does it."""

    def documents(self, number: int) -> Documents:
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().documents(number)


def test_a_process_that_dies_is_named_by_its_shard(shards: TokenShards) -> None:
    windows = Windows(Deadly(shards), PACKED, window=5)
    batches = Batches(StreamedRows(windows, workers=1), RowCount(4))
    with pytest.raises(QkvError, match=rf"process that made the rows of {shards.name(1)} died"):
        next(iter(batches))


def test_bad_rows_are_told_once(tmp_path: Path) -> None:
    texts, told = write_corpus(tmp_path / "texts", files=2, each=2), []
    with sorted(texts.iterdir())[1].open("a", encoding="utf-8") as file:
        file.write("no JSON\n")
    shards = TokenShards(sources_of(texts), byte_tokenizer(), tmp_path / "tokens")
    batches = Batches(StreamedRows(Windows(shards, PACKED), say=told.append), RowCount(4))
    list(batches), list(batches)
    (sentence,) = told
    assert sentence.startswith("Left out of 1-sound.jsonl: 1 bad row, first 1-sound.jsonl")


def test_a_window_without_shards_is_refused(shards: TokenShards) -> None:
    with pytest.raises(QkvError, match="at least one shard, but 0"):
        Windows(shards, PACKED, window=0)
