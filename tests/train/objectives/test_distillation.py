"""A student learns from its teacher: by hand where that is possible, and down to the parameters that get a gradient."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import qkv.train.objectives.distillation as module
from qkv.data.documents import Documents
from qkv.data.labelled import ClassRows
from qkv.data.masking import MaskedRows, Masking
from qkv.data.packing import pack
from qkv.data.pairs import Pairs
from qkv.data.plan import PlannedBatch
from qkv.data.token_rows import TokenRows
from qkv.errors import QkvError
from qkv.train.objectives.distillation import (
    DistillationLoss,
    SameAttention,
    SameDirection,
    SameStates,
    Student,
    softened_divergence,
)
from qkv.train.objectives.labels import ClassificationLoss
from qkv.train.objectives.language import LanguageLoss
from qkv.train.objectives.masked import MaskedLoss
from qkv.train.objectives.sequence_to_sequence import SequenceToSequenceLoss
from qkv.train.objectives.trace import traced
from qkv.train.provenance import describe
from tests.models.small import small_model
from tests.train.objectives.small import VOCABULARY, all_of, small_bert, small_gpt, some_texts

MASKING = Masking(mask=3, vocabulary=VOCABULARY, special=[0, 1, 2], rate=0.3)
HIDDEN = MaskedRows(some_texts(), MASKING)


@pytest.mark.parametrize("at_once", [1, 40, 2**24])
def test_the_softened_divergence_by_torch(at_once, monkeypatch):
    monkeypatch.setattr(module, "WIDENED_AT_ONCE", at_once)
    student, teacher = torch.randn(3, 4, 5, requires_grad=True), torch.randn(3, 4, 5)
    real = torch.rand(3, 4) < 0.6
    apart = softened_divergence(student, teacher, real, 2.5)
    log_p, log_q = F.log_softmax(teacher[real] / 2.5, -1), F.log_softmax(student[real] / 2.5, -1)
    expected = 2.5**2 * F.kl_div(log_q, log_p, log_target=True, reduction="sum")
    torch.testing.assert_close(apart, expected)
    torch.testing.assert_close(torch.autograd.grad(apart, student), torch.autograd.grad(expected, student))


def test_at_a_high_temperature_logits_are_matched():
    """[hinton2015 §2.1]: then T² times the gradient is that of the squares of zero-meaned logits, 1/c of it."""
    student, teacher = torch.randn(1, 7, requires_grad=True), torch.randn(1, 7)
    (gradient,) = torch.autograd.grad(softened_divergence(student, teacher, torch.tensor([True]), 1e3), student)
    centred = (student - student.mean()) - (teacher - teacher.mean())
    torch.testing.assert_close(gradient, centred.detach() / 7, rtol=1e-2, atol=1e-3)


def test_the_parts_are_weighed():
    teacher, student, batch = small_bert(seed=1), small_bert(seed=2), all_of(HIDDEN)
    said, tried = (MaskedLoss().predictions(model, batch).logits.detach() for model in (teacher, student))
    soft = softened_divergence(tried, said, torch.ones(len(tried), dtype=torch.bool), 3.0)
    hard = F.cross_entropy(tried, batch.wanted, reduction="sum")
    objective = DistillationLoss(teacher, MaskedLoss(), temperature=3.0, soft=0.7, hard=0.2)
    loss = objective(student, batch)
    torch.testing.assert_close(loss.total, 0.7 * soft + 0.2 * hard)
    assert loss.count == len(batch.places)
    loss.total.backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert all(parameter.grad is not None for parameter in student.head.parameters())


def test_a_student_like_its_teacher_costs_only_the_right_answers():
    matches = [
        SameDirection(layers=[(0, 0), (1, 1), (2, 2)]),
        SameStates(layers=[(2, 2)]),
        SameAttention(layers=[(1, 1), (2, 2)]),
    ]
    objective = DistillationLoss(small_bert(seed=1), MaskedLoss(), matches=matches)
    measured = objective.measure(small_bert(seed=1), all_of(HIDDEN, wider=2))
    for name in ("soft", "match_1", "match_2", "match_3"):
        assert measured[name].total.item() == pytest.approx(0, abs=1e-4)
    torch.testing.assert_close(measured["loss"].total, measured["nll"].total, rtol=1e-4, atol=1e-3)


def test_streams_and_weights_are_matched_at_real_tokens():
    teacher, student = small_bert(seed=1, layers=3), small_bert(seed=2)
    batch = all_of(HIDDEN)
    real = torch.arange(batch.ids.shape[1]) < batch.lengths[:, None]
    with traced(student, states=True, weights=True) as mine:
        MaskedLoss().predictions(student, batch, mine.ledger)
    with traced(teacher, states=True, weights=True) as theirs:
        MaskedLoss().predictions(teacher, batch, theirs.ledger)
    assert (len(mine.states), len(theirs.states)) == (3, 4)
    assert (len(mine.weights), len(theirs.weights)) == (2, 3)
    x, y = mine.states[2].x[real], theirs.states[3].x[real]
    objective = DistillationLoss(
        teacher, MaskedLoss(),
        matches=[SameDirection(layers=[(2, 3)]), SameStates(layers=[(2, 3)]), SameAttention(layers=[(1, 2)])],
    )  # fmt: skip
    measured = {name: loss.total / loss.count for name, loss in objective.measure(student, batch).items()}
    torch.testing.assert_close(measured["match_1"], 1 - F.cosine_similarity(x, y).mean())
    torch.testing.assert_close(measured["match_2"], F.mse_loss(x, y))
    wider = all_of(HIDDEN, wider=5)
    again = {name: loss.total / loss.count for name, loss in objective.measure(student, wider).items()}
    for name in ("match_1", "match_2"):
        torch.testing.assert_close(again[name], measured[name], rtol=1e-4, atol=1e-5)
    assert measured["match_3"] > 0
    assert not student.stack.blocks[0]._forward_hooks


def test_a_map_between_widths_is_trained_with_the_student():
    teacher, student = small_bert(seed=1), small_bert(seed=2, width=8)
    project = nn.Linear(8, 12)
    objective = DistillationLoss(
        teacher, MaskedLoss(), soft=0, hard=0, matches=[SameStates(layers=[(2, 2)], project=project)]
    )
    whole = Student(student, [project])
    objective(whole, all_of(HIDDEN)).total.backward()
    assert project.weight.grad is not None
    assert project.weight.grad.abs().sum() > 0
    assert "maps.0.weight" in whole.state_dict()
    with pytest.raises(QkvError, match="8 wide and the teacher's 12"):
        DistillationLoss(teacher, MaskedLoss(), matches=[SameStates(layers=[(2, 2)])])(student, all_of(HIDDEN))


def test_every_kind_of_task_can_be_taught():
    generator = np.random.default_rng(0)
    texts = TokenRows.from_lists([generator.integers(4, 31, 9).tolist() for _ in range(5)], 0)
    language = all_of(pack(Documents(texts, np.full(5, 20)), 30, end=2))
    classes = all_of(ClassRows(some_texts(), np.arange(6) % 2))
    pairs = Pairs.from_ids([[5, 6, 7], [8]], [[5, 6], [7, 8, 9, 10]])
    cases = [
        (small_gpt(seed=1), small_gpt(seed=2), LanguageLoss(), language),
        (small_bert("classification", 1, labels=("a", "b")), small_bert("classification", 2, labels=("a", "b")),
         ClassificationLoss(), classes),
        (small_model("transformer"), small_model("transformer"), SequenceToSequenceLoss(),
         pairs.batch(PlannedBatch(np.arange(2), 6, 7))),
    ]  # fmt: skip
    for teacher, student, task, batch in cases:
        objective = DistillationLoss(
            teacher, task, matches=[SameDirection(layers=[(1, 1)]), SameAttention(layers=[(1, 1)])]
        )
        loss = objective(student, batch)
        assert loss.count > 0
        assert loss.total.isfinite()
        loss.total.backward()


def test_what_cannot_be_taught_is_refused():
    teacher, student, batch = small_bert(seed=1), small_bert(seed=2), all_of(HIDDEN)
    with pytest.raises(QkvError, match="above 0"):
        DistillationLoss(teacher, MaskedLoss(), temperature=0)
    with pytest.raises(QkvError, match="0 or more"):
        DistillationLoss(teacher, MaskedLoss(), soft=-1)
    with pytest.raises(QkvError, match="no layer 9"):
        DistillationLoss(teacher, MaskedLoss(), matches=[SameDirection(layers=[(9, 1)])])(student, batch)
    with pytest.raises(QkvError, match="no attention 3"):
        DistillationLoss(teacher, MaskedLoss(), matches=[SameAttention(layers=[(1, 3)])])(student, batch)
    classes = all_of(ClassRows(some_texts(), np.arange(6) % 2))
    two, three = (small_bert("classification", labels=tuple("abc"[:n])) for n in (2, 3))
    with pytest.raises(QkvError, match="2 classes and the teacher between 3"):
        DistillationLoss(three, ClassificationLoss())(two, classes)


def test_a_run_records_how_it_was_taught():
    described = describe(DistillationLoss(small_bert(), MaskedLoss(), matches=[SameDirection(layers=[(1, 2)])]))
    assert described["name"] == "DistillationLoss"
    assert described["teacher"]["name"] == "TextModel"
    assert described["task"]["name"] == "MaskedLoss"
    assert described["matches"][0]["layers"] == [[1, 2]]
