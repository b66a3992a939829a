"""Pairs and their batches: right cells, no row lost or doubled, and an exact continuation."""

import json

import numpy as np
import pytest
import torch

from qkv.data.batches import Batches, ordered_batches
from qkv.data.pairs import PairBatch, Pairs
from qkv.data.plan import FixedShapes, RowCount, TokenBudget
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError

BATCHINGS = [TokenBudget(256), RowCount(8), TokenBudget(256, multiple_of=8), FixedShapes(256, (8, 16, 32))]


def some_pairs(count=400, seed=0):
    """Pair i holds the number 10 + i in every cell, so that a row is known wherever it turns up."""
    generator = np.random.default_rng(seed)
    sizes = generator.integers(0, 29, (count, 2))
    return Pairs.from_ids(
        [[10 + i] * s for i, (s, _) in enumerate(sizes)], [[10 + i] * t for i, (_, t) in enumerate(sizes)]
    )


def same(one: PairBatch, other: PairBatch):
    return all(
        torch.equal(getattr(one, name), getattr(other, name))
        for name in ("source", "source_lengths", "target", "target_lengths")
    )


def real_pairs(batch: PairBatch):
    """(source, target) of each row that predicts something, without padding."""
    rows = zip(batch.source, batch.source_lengths, batch.target, batch.target_lengths, strict=True)
    return [(tuple(s[:m].tolist()), tuple(t[:n].tolist())) for s, m, t, n in rows if n > 1]


def test_from_texts_adds_the_ends():
    letters = TextTokenizer.train("characters", ["cat"])
    sounds = TextTokenizer.train("symbols", ["K AE T"])
    pairs = Pairs.from_texts(["cat", "at"], ["K AE T", "AE T"], letters, sounds)
    assert [letters.tokens(row) for row in (pairs.source[0], pairs.source[1])] == [
        ["c", "a", "t", "</s>"],
        ["a", "t", "</s>"],
    ]
    assert sounds.tokens(pairs.target[1]) == ["<s>", "AE", "T", "</s>"]


def test_long_pairs_are_dropped_and_counted():
    pairs = Pairs.from_ids([[5], [5] * 4, [5], [5] * 3], [[6], [6], [6] * 4, [6] * 3], max_length=3)
    assert pairs.dropped == 2
    assert pairs.original.tolist() == [0, 3]
    assert len(pairs) == 2
    with pytest.raises(QkvError, match="no pair of at most 3 tokens among the 1 given"):
        Pairs.from_ids([[5] * 9], [[6]], max_length=3)
    with pytest.raises(QkvError, match="no pair among the 0"):
        Pairs.from_ids([], [])
    with pytest.raises(QkvError, match="as many sources as targets"):
        Pairs.from_ids([[5]], [])


def test_a_batch_cell_by_cell():
    pairs = Pairs.from_ids([[5, 6], [7]], [[8], [9, 10]], source_ends=(0, 2), target_ends=(20, 21, 22))
    (batch,) = Batches(pairs, TokenBudget(100))
    by_length = torch.argsort(batch.source_lengths, descending=True)
    assert batch.source[by_length].tolist() == [[5, 6, 2], [7, 2, 0]]
    assert batch.target[by_length].tolist() == [[21, 8, 22, 20], [21, 9, 10, 22]]
    assert batch.target_lengths[by_length].tolist() == [3, 4]
    assert batch.source.dtype == batch.target.dtype == batch.source_lengths.dtype == torch.long
    assert batch.target_tokens == 5


def test_a_batch_made_by_hand_counts_its_tokens_and_moves():
    batch = PairBatch(torch.ones(2, 3), torch.tensor([3, 1]), torch.ones(2, 4), torch.tensor([4, 2]))
    assert batch.target_tokens == 4
    moved = batch.to("meta")
    assert moved.source.device.type == moved.target_lengths.device.type == "meta"
    assert moved.target_tokens == 4


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


def test_filler_rows_predict_nothing():
    pairs = some_pairs(5)
    (batch,) = Batches(pairs, FixedShapes(1000, (32,)))
    assert batch.source.shape == (30, 32)
    assert batch.target.shape == (30, 33)
    assert batch.target_lengths[5:].tolist() == batch.source_lengths[5:].tolist() == [1] * 25
    assert batch.target[5:, 0].tolist() == [1] * 25
    assert not batch.target[5:, 1:].any()
    assert batch.target_tokens == int((pairs.target.lengths - 1).sum())


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


def test_subword_dropout_each_epoch():
    texts = ["the cat sat on the mat", "the mat sat on the cat"] * 30
    tokenizer = TextTokenizer.train("bpe", texts, vocabulary=300)
    batches = Batches(
        lambda epoch: Pairs.from_texts(texts, texts, tokenizer, tokenizer, subword_dropout=0.3), TokenBudget(512)
    )
    for _ in range(2):
        decoded = sorted(tokenizer.decode(row.tolist()) for batch in batches for row in batch.source)
        assert decoded == sorted(texts)


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
