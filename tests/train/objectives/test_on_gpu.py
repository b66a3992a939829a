"""Every objective on a GPU at the precision of training: the same figures but for rounding, and nothing left behind.

pytest -m gpu tests/train
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from qkv.data.contrast import GroupRows
from qkv.data.documents import Documents
from qkv.data.packing import pack, stream
from qkv.data.token_rows import TokenRows
from qkv.train.objectives.distillation import DistillationLoss, SameAttention, SameDirection
from qkv.train.objectives.embeddings import ContrastiveLoss, CosineLoss, TripletLoss
from qkv.train.objectives.labels import ClassificationLoss
from qkv.train.objectives.language import LanguageLoss
from qkv.train.objectives.masked import MaskedLoss, PretrainingLoss
from tests.train.objectives.small import VOCABULARY, all_of, small_bert, small_gpt, some_texts
from tests.train.objectives.test_labels import CASES as LABELS
from tests.train.objectives.test_labels import CLASSES, THREE
from tests.train.objectives.test_masked import pairs

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
PAIRS = (some_texts(5, seed=1), some_texts(5, seed=2))
ROWS = [np.random.default_rng(i).integers(4, VOCABULARY, 10).tolist() for i in range(9)]
CORPUS = Documents(TokenRows.from_lists(ROWS, 0), np.full(9, 30))


def embedder() -> Any:
    return small_bert("embedding", pooling="mean")


CASES: dict[str, tuple[Callable[[], Any], Any, Any]] = {
    **LABELS,
    "classes with weights": (
        lambda: small_bert("classification", **THREE), ClassificationLoss(weights=(1.0, 2.0, 3.0)), CLASSES
    ),
    "packed documents": (small_gpt, LanguageLoss(), pack(CORPUS, 40, end=2)),
    "a stream": (small_gpt, LanguageLoss(), stream(CORPUS, 40, end=2)),
    "hidden tokens": (small_bert, MaskedLoss(), pairs()),
    "both questions": (lambda: small_bert("pretraining"), PretrainingLoss(), pairs()),
    "contrast": (embedder, ContrastiveLoss(), GroupRows(PAIRS)),
    "cosines": (embedder, CosineLoss(), GroupRows(PAIRS, np.linspace(0, 1, 5).astype(np.float32))),
    "triplets": (embedder, TripletLoss(), GroupRows((*PAIRS, some_texts(5, seed=3)))),
    "a teacher": (
        small_bert,
        DistillationLoss(
            small_bert(seed=1), MaskedLoss(),
            matches=[SameDirection(layers=[(2, 2)]), SameAttention(layers=[(1, 2)])],
        ),
        pairs(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_figures_are_those_of_the_cpu(case: str) -> None:
    make, objective, rows = CASES[case]
    batch = all_of(rows)
    expected = {name: loss.total.item() / loss.count for name, loss in objective.measure(make(), batch).items()}
    model = make().to(DEVICE)
    measured = objective.measure(model, batch.to(DEVICE))
    for name, loss in measured.items():
        assert loss.total.item() / loss.count == pytest.approx(expected[name], rel=2e-3, abs=2e-3), name
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = objective(model, batch.to(DEVICE))
    assert loss.total.dtype == torch.float32
    assert loss.total.item() / loss.count == pytest.approx(expected["loss"], rel=0.1, abs=0.05)
    loss.total.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)
