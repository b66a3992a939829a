"""Losses over embeddings, by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qkv.data.contrast import GroupRows
from qkv.errors import QkvError
from qkv.train.objectives.embeddings import (
    ContrastiveLoss,
    CosineLoss,
    PairClassifier,
    PairClassLoss,
    TripletLoss,
    cosines,
    embeddings,
)
from tests.train.objectives.small import all_of, small_bert, some_texts

MODEL = small_bert("embedding", pooling="mean")
PAIRS = GroupRows((some_texts(5, seed=1), some_texts(5, seed=2)))
TRIPLETS = GroupRows((*PAIRS.texts, some_texts(5, seed=3)))


def test_an_embedding_does_not_depend_on_its_company():
    first, second = embeddings(MODEL, all_of(PAIRS, wider=3))
    assert first.shape == (5, 12)
    alone = MODEL(torch.tensor([PAIRS.texts[1].tokens[2]]))
    torch.testing.assert_close(second[2:3], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [PAIRS, TRIPLETS])
def test_every_text_is_to_find_its_own(rows):
    batch = all_of(rows)
    anchors, *others = F.normalize(embeddings(MODEL, batch), dim=-1)
    scores = anchors @ torch.cat(list(others)).T * 20
    assert scores.shape == (5, 5 * (batch.texts - 1))
    measured = ContrastiveLoss().measure(MODEL, batch)
    torch.testing.assert_close(measured["loss"].total, F.cross_entropy(scores, torch.arange(5), reduction="sum"))
    assert measured["accuracy"].total == (scores.argmax(-1) == torch.arange(5)).sum()
    assert measured["loss"].count == 5


def test_cosines_stay_fine_in_training_at_bfloat16():
    first, second = torch.randn(4, 300), torch.randn(5, 300)
    with torch.autocast("cpu", torch.bfloat16):
        found = cosines(first, second)
    torch.testing.assert_close(found, F.cosine_similarity(first[:, None], second[None], dim=-1))


def test_the_same_text_in_another_group_is_no_wrong_answer():
    batch = all_of(PAIRS)
    ids = batch.ids.clone()
    ids[6], lengths = ids[5], batch.lengths.clone()  # the second texts of groups 0 and 1 are the same
    lengths[6] = lengths[5]
    doubled = replace(batch, ids=ids, lengths=lengths)
    anchors, others = F.normalize(embeddings(MODEL, doubled), dim=-1)
    scores = anchors @ others.T * 20
    scores[0, 1] = scores[1, 0] = -torch.inf
    expected = F.cross_entropy(scores, torch.arange(5), reduction="sum")
    torch.testing.assert_close(ContrastiveLoss()(MODEL, doubled).total, expected)


def test_cosines_are_to_be_the_given_numbers():
    values = np.linspace(0, 1, 5).astype(np.float32)
    batch = all_of(GroupRows(PAIRS.texts, values))
    first, second = embeddings(MODEL, batch)
    expected = ((F.cosine_similarity(first, second) - torch.from_numpy(values)) ** 2).sum()
    torch.testing.assert_close(CosineLoss()(MODEL, batch).total, expected)
    with pytest.raises(QkvError, match="a value each"):
        CosineLoss()(MODEL, all_of(PAIRS))


def test_triplets():
    batch = all_of(TRIPLETS)
    anchor, like, unlike = embeddings(MODEL, batch)
    expected = F.triplet_margin_loss(anchor, like, unlike, margin=1.0, eps=0.0, reduction="sum")
    torch.testing.assert_close(TripletLoss()(MODEL, batch).total, expected)
    with pytest.raises(QkvError, match="groups of 2"):
        TripletLoss()(MODEL, all_of(PAIRS))


def test_classes_of_pairs_are_decided_from_both_and_their_difference():
    torch.manual_seed(0)
    classifier = PairClassifier(MODEL, 12, 3)
    labels = np.arange(5) % 3
    batch = all_of(GroupRows(PAIRS.texts, labels))
    u, v = embeddings(MODEL, batch)
    logits = torch.cat([u, v, (u - v).abs()], -1) @ classifier.out.weight.T
    expected = F.cross_entropy(logits, torch.from_numpy(labels), reduction="sum")
    torch.testing.assert_close(PairClassLoss()(classifier, batch).total, expected)
