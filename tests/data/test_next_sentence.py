"""Pairs of segments: real order, half of them from elsewhere, rows filled and never overfull."""

import random

import numpy as np
import pytest

from qkv.data.batches import Batches
from qkv.data.masking import Masking
from qkv.data.next_sentence import SegmentPairs, Sentences, Special, truncated
from qkv.data.plan import FixedShapes, TokenBudget
from qkv.data.token_rows import TokenRows
from qkv.errors import QkvError

SPECIAL = Special(classifier=1, separator=2, pad=0)
VOCABULARY = 100_000


def some_sentences(documents=60, seed=0) -> Sentences:
    """Token number 1000 d + j + 10 is the j-th token of document d."""
    generator = np.random.default_rng(seed)
    rows, sizes = [], []
    for document in range(documents):
        at = 1000 * document + 10
        sizes.append(int(generator.integers(1, 30)))
        for _ in range(sizes[-1]):
            length = int(generator.integers(1, 20))
            rows.append(list(range(at, at + length)))
            at += length
    return Sentences.from_rows(TokenRows.from_lists(rows, 0), np.array(sizes))


def pairs(length=64, **changes) -> SegmentPairs:
    masking = Masking(mask=3, vocabulary=VOCABULARY, special=[0, 1, 2])
    return SegmentPairs(some_sentences(), length, SPECIAL, masking, **changes)


def segments_of(rows):
    """(first, second, elsewhere) of each row."""
    for row in range(len(rows)):
        ids, segments = np.array(rows.texts.tokens[row]), np.array(rows.texts.segments[row])
        assert ids[0] == 1
        assert ids[-1] == ids[segments == 0][-1] == 2
        yield ids[segments == 0][1:-1], ids[segments == 1][:-1], rows.elsewhere[row]


def test_segments_are_stretches_of_documents_and_labels_are_true():
    rows = pairs()(0)
    for first, second, elsewhere in segments_of(rows):
        assert len(first)
        assert len(second)
        assert (np.diff(first) == 1).all()
        assert (np.diff(second) == 1).all()
        same_document = first[0] // 1000 == second[0] // 1000
        assert same_document == (not elsewhere)
        if not elsewhere:
            assert second[0] > first[-1]


def test_true_pairs_join_unless_they_were_cut():
    joined = [second[0] == first[-1] + 1 for first, second, elsewhere in segments_of(pairs()(0)) if not elsewhere]
    assert np.mean(joined) > 0.4


def test_about_half_come_from_elsewhere():
    # A last sentence that stands alone has no second half, so a little more than half come from elsewhere.
    assert 0.45 < np.mean([pairs()(epoch).elsewhere.mean() for epoch in range(5)]) < 0.65


def test_rows_are_filled_and_never_overfull():
    lengths = pairs(short=0.0)(0).texts.tokens.lengths
    assert lengths.max() == 64
    assert np.median(lengths) > 55
    assert np.mean(pairs(short=1.0)(0).texts.tokens.lengths) < np.mean(lengths) * 0.8


def test_every_document_is_used():
    firsts = {int(first[0]) // 1000 for first, _, _ in segments_of(pairs()(0))}
    assert firsts == set(range(60))


def test_epochs_differ_and_repeat():
    one, same, other = pairs()(0), pairs()(0), pairs()(1)
    assert np.array_equal(one.texts.tokens.ids, same.texts.tokens.ids)
    assert not np.array_equal(one.texts.tokens.ids, other.texts.tokens.ids)


def test_a_batch_holds_both_questions():
    for batch in Batches(pairs(), TokenBudget(1024)):
        assert batch.segments is not None
        assert batch.ids.shape == batch.segments.shape
        assert batch.elsewhere.shape == batch.lengths.shape
        assert batch.asked == len(batch.lengths)
        assert len(batch.places) == len(batch.wanted) > 0
    batch = list(Batches(pairs(), FixedShapes(65 * 1000, (64,))))[-1]
    assert batch.asked == int((batch.elsewhere >= 0).sum()) < 1000


def test_the_longer_segment_loses_tokens_at_either_end():
    generator = random.Random(0)
    assert truncated((0, 2), (5, 6), 5, generator) == (0, 2, 5, 6)
    a, b, *second = truncated((0, 20), (100, 105), 15, generator)
    assert second == [100, 105]
    assert b - a == 10
    assert 0 < a < 10
    a, b, c, d = truncated((0, 20), (100, 112), 15, generator)
    assert (b - a, d - c) == (8, 7)
    assert 0 <= a
    assert b <= 20
    assert 100 <= c
    assert d <= 112
    fronts = [truncated((0, 21), (100, 101), 2, generator)[0] for _ in range(200)]
    assert 9 < np.mean(fronts) < 11  # of 20 tokens to go, half at the front


def test_texts_become_sentences():
    class Letters:
        def encode(self, texts):
            return [[ord(letter) for letter in text] for text in texts]

    sentences = Sentences.from_texts(["One. Two.", "  ", "Three."], Letters())
    assert sentences.documents.tolist() == [0, 2, 3]
    assert "".join(map(chr, sentences.tokens[1])) == "Two."
    with pytest.raises(QkvError, match="a second document"):
        Sentences.from_texts(["One. Two."], Letters())
    with pytest.raises(QkvError, match="at least 5"):
        pairs(length=4)
