"""Decisions about texts: torch's own losses on the model's logits, and nothing from padding or filler."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qkv.data.answers import SpanRows
from qkv.data.labelled import ClassRows, ValueRows
from qkv.data.tagged import TagRows
from qkv.data.token_rows import TokenRows
from qkv.errors import QkvError
from qkv.train.objectives.labels import ClassificationLoss, RegressionLoss, SpanLoss, TagLoss
from tests.train.objectives.small import all_of, small_bert, small_gpt, some_texts

TEXTS = some_texts(8)
LENGTHS = TEXTS.tokens.lengths
CLASSES = ClassRows(TEXTS, np.arange(8) % 3)
VALUES = ValueRows(TEXTS, np.linspace(-1, 1, 8).astype(np.float32))
TAGS = TagRows(TEXTS, TokenRows.from_lists([[-1, *[i % 4 for i in range(n - 2)], -1] for n in LENGTHS], -1))
SPANS = SpanRows(TEXTS, np.minimum(1, LENGTHS - 1), LENGTHS - 1)
THREE = {"labels": ("a", "b", "c")}
CASES = {
    "class": (lambda: small_bert("classification", **THREE), ClassificationLoss(smoothing=0.1), CLASSES),
    "class by a GPT": (lambda: small_gpt("classification", **THREE), ClassificationLoss(), CLASSES),
    "number": (lambda: small_bert("classification", labels=("value",)), RegressionLoss(), VALUES),
    "tags": (lambda: small_bert("tokens", labels=("a", "b", "c", "d")), TagLoss(), TAGS),
    "span": (lambda: small_bert("spans"), SpanLoss(), SPANS),
}


@pytest.mark.parametrize("case", CASES)
def test_padding_and_filler_add_nothing(case):
    make, objective, rows = CASES[case]
    model = make()
    plain, wider = all_of(rows), all_of(rows, wider=4, filler=2)
    for name, loss in objective.measure(model, plain).items():
        other = objective.measure(model, wider)[name]
        torch.testing.assert_close(other.total, loss.total)
        assert other.count == loss.count > 0
    assert objective(model, plain).total.requires_grad


def test_classes_with_smoothing_and_weights():
    model, batch = small_bert("classification", **THREE), all_of(CLASSES)
    logits = model(batch.ids, lengths=batch.lengths)
    weights = (1.0, 2.0, 0.5)
    loss = ClassificationLoss(smoothing=0.2, weights=weights)(model, batch)
    expected = F.cross_entropy(logits, batch.labels, weight=torch.tensor(weights), label_smoothing=0.2, reduction="sum")
    torch.testing.assert_close(loss.total, expected)
    accuracy = ClassificationLoss().measure(model, batch)["accuracy"]
    assert accuracy.total == (logits.argmax(-1) == batch.labels).sum()
    with pytest.raises(QkvError, match="2 class weights, but the model has 3"):
        ClassificationLoss(weights=(1.0, 1.0))(model, batch)


def test_numbers():
    model, batch = small_bert("classification", labels=("value",)), all_of(VALUES)
    said = model(batch.ids, lengths=batch.lengths).squeeze(-1)
    torch.testing.assert_close(RegressionLoss()(model, batch).total, ((said - batch.values) ** 2).sum())
    with pytest.raises(QkvError, match="one label"):
        RegressionLoss()(small_bert("classification", **THREE), batch)


def test_tags():
    model, batch = small_bert("tokens", labels=("a", "b", "c", "d")), all_of(TAGS)
    logits, tagged = model(batch.ids, lengths=batch.lengths), batch.tags >= 0
    expected = F.cross_entropy(logits[tagged], batch.tags[tagged], reduction="sum")
    torch.testing.assert_close(TagLoss()(model, batch).total, expected)
    assert TagLoss()(model, batch).count == tagged.sum()


def test_spans():
    model = small_bert("spans")
    expected = torch.zeros(())
    for i in range(8):
        scores = model(torch.tensor([TEXTS.tokens[i]]))[0]  # without any padding
        start = F.cross_entropy(scores[:, 0], torch.tensor(SPANS.starts[i]))
        end = F.cross_entropy(scores[:, 1], torch.tensor(SPANS.ends[i]))
        expected = expected + (start + end) / 2
    loss = SpanLoss()(model, all_of(SPANS))
    torch.testing.assert_close(loss.total, expected, rtol=1e-4, atol=1e-4)
    assert loss.count == 8
    said = SpanLoss().predictions(model, all_of(SPANS, filler=1))
    assert (said.count, len(said.wanted), int(said.real.sum())) == (16, 18, 16)
