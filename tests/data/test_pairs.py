"""Pairs and their batches: right cells, and what is left out."""

import pytest
import torch

from qkv.data.batches import Batches
from qkv.data.pairs import PairBatch, Pairs
from qkv.data.plan import FixedShapes, TokenBudget
from qkv.data.tokenizer import TextTokenizer
from qkv.errors import QkvError
from tests.data.some_pairs import some_pairs


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


def test_sources_that_fill_their_rows_need_no_lengths():
    full = Pairs.from_ids([[5, 6], [7, 8]], [[8], [9, 10]])
    (batch,) = Batches(full, TokenBudget(100))
    assert batch.padding is None
    assert batch.to("meta").padding is None
    (batch,) = Batches(Pairs.from_ids([[5, 6], [7]], [[8], [9, 10]]), TokenBudget(100))
    assert batch.padding is batch.source_lengths
    by_hand = PairBatch(torch.ones(2, 3), torch.tensor([3, 3]), torch.ones(2, 4), torch.tensor([4, 2]))
    assert by_hand.padding is None


def test_filler_rows_predict_nothing():
    pairs = some_pairs(5)
    (batch,) = Batches(pairs, FixedShapes(1000, (32,)))
    assert batch.source.shape == (30, 32)
    assert batch.target.shape == (30, 33)
    assert batch.target_lengths[5:].tolist() == batch.source_lengths[5:].tolist() == [1] * 25
    assert batch.target[5:, 0].tolist() == [1] * 25
    assert not batch.target[5:, 1:].any()
    assert batch.target_tokens == int((pairs.target.lengths - 1).sum())


def test_subword_dropout_each_epoch():
    texts = ["the cat sat on the mat", "the mat sat on the cat"] * 30
    tokenizer = TextTokenizer.train("bpe", texts, vocabulary=300)
    batches = Batches(
        lambda epoch: Pairs.from_texts(texts, texts, tokenizer, tokenizer, subword_dropout=0.3), TokenBudget(512)
    )
    for _ in range(2):
        decoded = sorted(tokenizer.decode(row.tolist()) for batch in batches for row in batch.source)
        assert decoded == sorted(texts)
