"""Hidden tokens and pairs of segments: the loss of the logits at those places, and no others."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qkv.data.masking import MaskedRows, Masking
from qkv.data.next_sentence import PretrainingRows
from qkv.data.text_rows import TextRows
from qkv.data.token_rows import TokenRows
from qkv.errors import QkvError
from qkv.train.objectives.masked import MaskedLoss, PretrainingLoss
from tests.train.objectives.small import CLS, MASK, PAD, SEP, VOCABULARY, all_of, small_bert, some_texts

MASKING = Masking(mask=MASK, vocabulary=VOCABULARY, special=[PAD, CLS, SEP], rate=0.3)


def pairs(count: int = 6) -> PretrainingRows:
    texts = some_texts(count)
    segments = [[0] * (len(texts.tokens[i]) // 2) + [1] * (-(-len(texts.tokens[i]) // 2)) for i in range(count)]
    with_segments = TextRows(texts.tokens, TokenRows.from_lists(segments, 0), texts.original)
    return PretrainingRows(with_segments, np.arange(count) % 2, MASKING)


def test_the_loss_is_that_of_the_logits_at_hidden_places():
    model, batch = small_bert(), all_of(MaskedRows(some_texts(), MASKING), wider=3)
    logits = model(batch.ids, lengths=batch.lengths).flatten(0, 1)[batch.places]
    measured = MaskedLoss().measure(model, batch)
    expected = F.cross_entropy(logits, batch.wanted, reduction="sum")
    torch.testing.assert_close(measured["loss"].total, expected)
    assert measured["nll"].count == len(batch.places) > 5
    said = MaskedLoss().predictions(model, batch)
    torch.testing.assert_close(said.logits, logits)
    smoothed = F.cross_entropy(logits, batch.wanted, reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(MaskedLoss(smoothing=0.1)(model, batch).total, smoothed)


def test_pretraining_is_the_sum_of_both_means():
    model, batch = small_bert("pretraining"), all_of(pairs(), wider=2)
    masked, second = model(batch.ids, lengths=batch.lengths, segments=batch.segments)
    first = F.cross_entropy(masked.flatten(0, 1)[batch.places], batch.wanted)
    next_sentence = F.cross_entropy(second, batch.elsewhere)
    loss = PretrainingLoss()(model, batch)
    torch.testing.assert_close(loss.total / loss.count, first + next_sentence)
    measured = PretrainingLoss().measure(model, batch)
    torch.testing.assert_close(measured["nll"].total / measured["nll"].count, first)
    torch.testing.assert_close(measured["next_sentence"].total / 6, next_sentence)
    right = (second.argmax(-1) == batch.elsewhere).sum()
    assert measured["next_sentence_accuracy"].total == right
    assert torch.equal(
        PretrainingLoss().predictions(model, batch).logits, MaskedLoss().predictions(model, batch).logits
    )


def test_filler_rows_count_as_nothing():
    model = small_bert("pretraining")
    plain, filled = all_of(pairs(), wider=2), all_of(pairs(), wider=2, filler=3)
    assert len(filled.ids) == len(plain.ids) + 3
    for name, loss in PretrainingLoss().measure(model, plain).items():
        other = PretrainingLoss().measure(model, filled)[name]
        torch.testing.assert_close(other.total, loss.total)
        assert other.count == loss.count


def test_a_batch_with_nothing_hidden_costs_nothing():
    batch = all_of(MaskedRows(some_texts(), MASKING))
    nothing = replace(batch, places=batch.places[:0], wanted=batch.wanted[:0])
    loss = MaskedLoss()(small_bert(), nothing)
    assert (loss.total.item(), loss.count) == (0.0, 0)


def test_pairs_of_segments_need_the_right_head():
    with pytest.raises(QkvError, match="'pretraining'"):
        PretrainingLoss()(small_bert("masked"), all_of(pairs()))
