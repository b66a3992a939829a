"""Packed rows: every token predicted once, documents kept apart, little space lost, the same for the same seed."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from qkv.data.batches import Batches
from qkv.data.documents import Documents
from qkv.data.packing import LanguageRows, best_fit, pack, stream
from qkv.data.plan import FixedShapes, PlannedBatch, RowCount
from qkv.data.token_rows import TokenRows
from qkv.errors import QkvError

START, END = 1, 2


def some_documents(count=300, longest=90, seed=0) -> Documents:
    """Document i is 1000 i + 10, 1000 i + 11, ...: a token tells where it came from."""
    lengths = np.random.default_rng(seed).integers(0, longest, count)
    rows = [[1000 * i + 10 + j for j in range(length)] for i, length in enumerate(lengths)]
    return Documents(TokenRows.from_lists(rows, 0), lengths * 3 + 1)


def whole(rows: LanguageRows):
    return rows.batch(PlannedBatch(np.arange(len(rows.tokens)), int(rows.sizes[0].max()), 1))


@pytest.mark.parametrize("start", [None, START])
@pytest.mark.parametrize("length", [1, 7, 64])
def test_packing_predicts_every_token_once_from_its_own_document(length, start):
    documents = some_documents()
    batch = whole(pack(documents, length, end=END, start=start))
    wanted, real = batch.wanted
    before = batch.ids[:, :-1][real].tolist()
    after = wanted[real].tolist()
    expected = []
    for i in range(len(documents)):
        marked = [*([] if start is None else [START]), *documents.tokens[i], END]
        expected += pairwise(marked)
    assert sorted(zip(before, after, strict=True)) == sorted(expected)
    assert batch.predicted == len(expected)
    assert batch.ids.shape[1] == length + 1


def test_tokens_of_one_number_are_a_stretch_of_one_document():
    batch = whole(pack(some_documents(), 64, end=END))
    for ids, numbers in zip(batch.ids, batch.documents, strict=True):
        for number in range(1, int(numbers.max()) + 1):
            (places,) = torch.where(numbers == number)
            assert places.tolist() == list(range(int(places[0]), int(places[-1]) + 1))
            text = [token for token in ids[places].tolist() if token != END]
            assert text == list(range(text[0], text[0] + len(text))) if text else True


def test_little_is_left_empty():
    rows = pack(some_documents(2000, longest=700), 256, end=END)
    assert rows.tokens.lengths.sum() / (len(rows.tokens) * 257) > 0.99


def test_best_fit_by_hand():
    assert best_fit([6, 5, 4, 3, 2], 10) == [[0, 2], [1, 3, 4]]
    assert best_fit([5, 5, 5], 5) == [[0], [1], [2]]


@pytest.mark.parametrize("make", [pack, stream])
def test_seeds_repeat_and_differ(make):
    documents = some_documents()
    one, same, other = (make(documents, 32, end=END, seed=seed).tokens for seed in (1, 1, 2))
    assert np.array_equal(one.ids, same.ids)
    assert len(one.ids) == len(other.ids)
    assert not np.array_equal(one.ids, other.ids)


@pytest.mark.parametrize("make", [pack, stream])
def test_with_a_start_all_bytes_are_counted_once(make):
    documents = some_documents()
    rows = make(documents, 20, end=END, start=START)
    assert rows.bytes.sum() == documents.bytes.sum()
    assert (rows.bytes >= 0).all()
    batches = Batches(rows, RowCount(7))
    assert sum(batch.bytes for batch in batches) == documents.bytes.sum()


def test_a_stream_is_cut_anywhere_and_loses_nothing():
    documents = some_documents()
    rows = stream(documents, 50, end=END, seed=4)
    batch = whole(rows)
    wanted, real = batch.wanted
    flat = [int(batch.ids[0, 0]), *wanted[real].tolist()]
    tokens = documents.tokens.lengths.sum() + len(documents)
    assert len(flat) == tokens
    assert sorted(token for token in flat if token != END) == sorted(documents.tokens.ids.tolist())
    assert batch.documents.max() == 1
    assert (rows.tokens.lengths[:-1] == 51).all()


def test_filler_rows_predict_nothing():
    rows = pack(some_documents(10), 64, end=END)
    batches = list(Batches(rows, FixedShapes(65 * 40, (64,))))
    assert batches[0].ids.shape == (40, 65)
    assert batches[0].predicted == int(batches[0].wanted[1].sum())
    assert batches[0].predicted == sum(len(some_documents(10).tokens[i]) for i in range(10))


def test_empty_documents_are_refused():
    nothing = Documents(TokenRows.from_lists([[]], 0), np.array([0]))
    for make in (pack, stream):
        with pytest.raises(QkvError, match="nothing to predict"):
            make(nothing, 8, end=END)
        with pytest.raises(QkvError, match="at least 1 token"):
            make(some_documents(), 0, end=END)
