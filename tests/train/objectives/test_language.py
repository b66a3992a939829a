"""Next-token prediction on packed documents equals prediction on each document alone."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qkv.data.documents import Documents
from qkv.data.packing import pack, stream
from qkv.data.plan import PlannedBatch
from qkv.data.token_rows import TokenRows
from qkv.errors import QkvError
from qkv.train.evaluation import ValidationLoss
from qkv.train.objectives.language import LanguageLoss
from tests.train.objectives.small import VOCABULARY, all_of, small_gpt

END = 2


def some_documents(count=9, longest=14) -> Documents:
    generator = np.random.default_rng(1)
    rows = [generator.integers(4, VOCABULARY, generator.integers(1, longest)).tolist() for _ in range(count)]
    return Documents(TokenRows.from_lists(rows, 0), np.array([3 * len(row) for row in rows]))


def alone(model, documents) -> torch.Tensor:
    """The sum over all documents, each read by itself."""
    total = torch.zeros(())
    for i in range(len(documents)):
        ids = torch.tensor([[1, *documents.tokens[i], END]])
        total = total + F.cross_entropy(model(ids[:, :-1]).squeeze(0), ids[0, 1:], reduction="sum")
    return total


def test_packed_documents_cost_what_they_cost_alone():
    model, documents = small_gpt(), some_documents()
    batch = all_of(pack(documents, 40, end=END, start=1))
    assert batch.packed
    loss = LanguageLoss()(model, batch)
    expected = alone(model, documents)
    torch.testing.assert_close(loss.total, expected, rtol=1e-5, atol=1e-4)
    assert loss.count == int(documents.tokens.lengths.sum()) + len(documents)
    names = [name for name, _ in model.named_parameters()]
    gradients = torch.autograd.grad(loss.total, list(model.parameters()))
    for name, mine, theirs in zip(
        names, gradients, torch.autograd.grad(expected, list(model.parameters())), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3, msg=name)


def test_rows_of_one_document_need_no_document_mask():
    model, documents = small_gpt(), some_documents()
    apart = Documents(TokenRows.from_lists([documents.tokens[0]], 0), documents.bytes[:1])
    batch = all_of(pack(apart, 14, end=END, start=1), wider=5)
    assert not batch.packed
    torch.testing.assert_close(LanguageLoss()(model, batch).total, alone(model, apart))


def test_a_stream_sees_across_documents():
    model, documents = small_gpt(), some_documents()
    rows = stream(documents, 30, end=END)
    batch = all_of(rows)
    ids = torch.tensor([rows.tokens[0]])
    expected = F.cross_entropy(model(ids[:, :-1]).squeeze(0), ids[0, 1:], reduction="sum")
    first = rows.batch(PlannedBatch(np.array([0]), 30, 1))
    torch.testing.assert_close(LanguageLoss()(model, first).total, expected)
    assert LanguageLoss()(model, batch).count == len(rows.tokens.ids) - len(rows.tokens)


def test_validation_gives_perplexity_and_bits_for_each_byte():
    model, documents = small_gpt(), some_documents()
    rows = pack(documents, 40, end=END, start=1)
    with torch.no_grad():
        figures = ValidationLoss(LanguageLoss(), [all_of(rows)])(model)
    total = alone(model, documents).item()
    tokens = int(documents.tokens.lengths.sum()) + len(documents)
    assert figures["perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-4)
    assert figures["bits_per_byte"] == pytest.approx(total / math.log(2) / documents.bytes.sum(), rel=1e-4)


def test_predictions_are_those_of_the_loss():
    model, batch = small_gpt(), all_of(pack(some_documents(), 40, end=END))
    said = LanguageLoss().predictions(model, batch)
    entropy = F.cross_entropy(said.logits[said.real], said.wanted[said.real], reduction="sum")
    torch.testing.assert_close(entropy, LanguageLoss()(model, batch).total)
    assert said.count == int(said.real.sum())


def test_smoothing_out_of_range_is_refused():
    with pytest.raises(QkvError, match="at least 0"):
        LanguageLoss(smoothing=1.0)
