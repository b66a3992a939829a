"""Batches of any rows: none lost or doubled, and an exact continuation."""

import json

import numpy as np
import pytest
import torch

from qkv.data.batches import Batches, ordered_batches
from qkv.data.pairs import PairBatch, Pairs
from qkv.data.plan import FixedShapes, RowCount, TokenBudget
from qkv.errors import QkvError
from tests.data.some_pairs import some_pairs

BATCHINGS = [TokenBudget(256), RowCount(8), TokenBudget(256, multiple_of=8), FixedShapes(256, (8, 16, 32))]


def same(one: PairBatch, other: PairBatch):
    return all(
        torch.equal(getattr(one, name), getattr(other, name))
        for name in ("source", "source_lengths", "target", "target_lengths")
    )


def real_pairs(batch: PairBatch):
    """(source, target) of each row that predicts something, without padding."""
    rows = zip(batch.source, batch.source_lengths, batch.target, batch.target_lengths, strict=True)
    return [(tuple(s[:m].tolist()), tuple(t[:n].tolist())) for s, m, t, n in rows if n > 1]


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("batching", BATCHINGS, ids=str)
def test_an_epoch_holds_every_row_once(batching, prefetch):
    pairs = some_pairs()
    expected = sorted((tuple(pairs.source[i]), tuple(pairs.target[i])) for i in range(len(pairs)))
    batches = Batches(pairs, batching, prefetch=prefetch)
    for _ in range(2):
        epoch = list(batches)
        assert sorted(pair for batch in epoch for pair in real_pairs(batch)) == expected
        assert sum(batch.target_tokens for batch in epoch) == int((pairs.target.lengths - 1).sum())
        assert all(batch.source.numel() <= 256 and batch.target.numel() <= 256 for batch in epoch)


def test_epochs_and_seeds_differ_and_repeat():
    pairs = some_pairs()
    batches = Batches(pairs, TokenBudget(256), seed=3)
    first, second = list(batches), list(batches)
    again = list(Batches(pairs, TokenBudget(256), seed=3))
    other = list(Batches(pairs, TokenBudget(256), seed=4))
    assert all(map(same, first, again))
    assert not all(same(a, b) for a, b in zip(first, second, strict=False))
    assert not all(same(a, b) for a, b in zip(first, other, strict=False))


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("batching", BATCHINGS, ids=str)
def test_resuming_continues_with_the_same_batches(batching, prefetch):
    pairs = some_pairs()
    whole = Batches(pairs, batching, seed=7, prefetch=prefetch)
    count = len(whole)
    expected = [batch for _ in range(3) for batch in whole]
    for stop in (0, 1, count - 1, count, count + 2):
        before = Batches(pairs, batching, seed=7, prefetch=prefetch)
        taken = 0
        while taken < stop:
            for _ in before:
                taken += 1
                if taken == stop:
                    break
        after = Batches(pairs, batching, seed=7, prefetch=prefetch)
        after.load_state_dict(json.loads(json.dumps(before.state_dict())))
        rest = [batch for _ in range(3 - after.epoch) for batch in after]
        assert len(rest) == len(expected) - stop
        assert all(map(same, rest, expected[stop:]))


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("batching", BATCHINGS, ids=str)
def test_batches_in_parts_hold_the_same_rows_and_continue(batching, prefetch):
    pairs = some_pairs()
    whole = [real_pairs(batch) for batch in Batches(pairs, batching, seed=7, prefetch=0)]
    divided = Batches(pairs, batching, seed=7, prefetch=prefetch)
    assert divided.in_parts(4)
    parts, places = [], []
    for batch in divided:
        parts.append(batch)
        places.append(json.loads(json.dumps(divided.state_dict())))
    together = [[]]
    for batch, place in zip(parts, places, strict=True):
        together[-1] += real_pairs(batch)
        if place["part"] == 0:
            together.append([])
    assert together == [*whole, []]
    assert max(len(batch.source) for batch in parts) < max(len(rows) for rows in whole)
    for stop in (1, 2, 5):
        after = Batches(pairs, batching, seed=7, prefetch=prefetch)
        after.load_state_dict(places[stop - 1])
        assert all(map(same, after, parts[stop:]))


def test_batches_of_one_row_cannot_be_divided():
    batches = Batches(some_pairs(), RowCount(3))
    assert batches.in_parts(2)
    assert batches.in_parts(4)
    assert not batches.in_parts(8)


def test_resuming_makes_no_batch_that_was_seen(monkeypatch):
    pairs = some_pairs()
    batches = Batches(pairs, TokenBudget(256), prefetch=0)
    count = len(batches)
    batches.load_state_dict(batches.state_dict() | {"index": count - 1})
    made = []
    monkeypatch.setattr(Pairs, "batch", lambda self, planned: made.append(planned))
    assert len(list(batches)) == len(made) == 1
    assert (batches.epoch, batches.index) == (1, 0)


def test_a_position_of_other_batches_is_refused():
    state = Batches(some_pairs(), TokenBudget(256), seed=1).state_dict()
    with pytest.raises(QkvError, match="seed 1, not 2"):
        Batches(some_pairs(), TokenBudget(256), seed=2).load_state_dict(state)
    with pytest.raises(QkvError, match="batching"):
        Batches(some_pairs(), TokenBudget(512), seed=1).load_state_dict(state)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ranks_together_see_the_batches_of_one_process(ranks):
    alone = Batches(some_pairs(), RowCount(7), seed=3)
    sharing = [Batches(some_pairs(), RowCount(7), seed=3) for _ in range(ranks)]
    for rank, batches in enumerate(sharing):
        batches.share(rank, ranks)
    streams = [iter(batches) for batches in sharing]
    for whole in alone:
        parts = [(next(stream), batches) for stream, batches in zip(streams, sharing, strict=True)]
        seen = [pair for batch, batches in parts if not batches.idle for pair in real_pairs(batch)]
        assert seen == real_pairs(whole)
        assert {repr(batches.state_dict()) for batches in sharing} == {repr(alone.state_dict())}
        assert sum(batches.idle for batches in sharing) == max(0, ranks - len(whole.source))


def test_pairs_made_anew_each_epoch():
    asked = []

    def cut(epoch):
        asked.append(epoch)
        return some_pairs(seed=epoch)

    batches = Batches(cut, TokenBudget(256))
    for epoch in range(3):
        pairs = some_pairs(seed=epoch)
        expected = sorted((tuple(pairs.source[i]), tuple(pairs.target[i])) for i in range(len(pairs)))
        assert sorted(pair for batch in batches for pair in real_pairs(batch)) == expected
    assert asked[:3] == [0, 1, 2]
    assert len(asked) == len(set(asked))


def test_a_position_beyond_a_shorter_epoch_goes_on_with_the_next():
    batches = Batches(lambda epoch: some_pairs(), TokenBudget(256))
    batches.load_state_dict(batches.state_dict() | {"index": 10_000})
    assert next(iter(batches)) is not None
    assert batches.epoch == 1


def test_an_error_in_making_pairs_reaches_the_consumer():
    def broken(epoch):
        raise QkvError("no such text")

    with pytest.raises(QkvError, match="no such text"):
        next(iter(Batches(broken, TokenBudget(256))))


def test_ordered_batches_are_longest_first_with_their_places():
    sizes = np.random.default_rng(0).integers(1, 40, 300)
    ids = [[10 + i] * int(size) for i, size in enumerate(sizes)]
    pairs = Pairs.from_ids(ids, ids, max_length=35)
    seen = []
    widths = []
    for places, batch in ordered_batches(pairs, 256, multiple_of=4):
        assert [row[0].item() - 10 for row in batch.source] == places.tolist()
        assert batch.target.numel() <= 256
        seen += places.tolist()
        widths.append(batch.source.shape[1])
    assert sorted(seen) == np.flatnonzero(sizes <= 35).tolist()
    assert widths == sorted(widths, reverse=True)


@pytest.mark.gpu
def test_batches_are_pinned_where_there_is_a_gpu():
    batch = next(iter(Batches(some_pairs(), TokenBudget(256))))
    assert batch.source.is_pinned()
    assert batch.to("cuda").target.is_cuda
