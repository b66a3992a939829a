"""What image models learn from: one class, two by their shares, or a teacher."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.data.augment import Flip, Mixing
from qkv.data.batches import Batches
from qkv.data.image_rows import ImageBatch, ImageRows
from qkv.data.plan import PlannedBatch, RowCount
from qkv.data.preprocessing import Normalise
from qkv.errors import QkvError
from qkv.train.objectives.distillation import DistillationLoss
from qkv.train.objectives.images import HardDistillationLoss, ImageClassificationLoss, SeenAnew
from tests.models.small_images import small_model

NORMALISE = Normalise(1 / 255, (0.5,) * 3, (0.5,) * 3)
NAMES = ("bad", "fair", "good")


def rows(count: int = 9) -> ImageRows:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 12, 12, 3)).astype(np.uint8)
    return ImageRows(pixels, np.arange(count) % 3, NAMES)


def batch(filler: int = 0, **changes: object) -> ImageBatch:
    return replace(rows().batch(PlannedBatch(np.arange(6), 1, 1, filler)), **changes)


class Said(nn.Module):
    """Answers with given logits."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, images: Tensor) -> Tensor:
        return self.logits


def test_a_plain_picture_has_one_class() -> None:
    model = small_model("vit", "classification")
    found = ImageClassificationLoss(normalise=NORMALISE).measure(model, batch())
    logits = model(NORMALISE(batch().pixels))
    expected = F.cross_entropy(logits, batch().labels, reduction="sum")
    torch.testing.assert_close(found["loss"].total, expected)
    assert found["loss"].count == found["accuracy"].count == 6
    assert int(found["accuracy"].total) == int((logits.argmax(-1) == batch().labels).sum())
    assert int(found["top5"].total) == 6  # of three classes


def test_the_five_likeliest_are_counted() -> None:
    labels = torch.arange(6)
    logits = -torch.arange(7.0).repeat(6, 1)  # class 0 first, then 1, …
    found = ImageClassificationLoss(normalise=NORMALISE).measure(Said(logits), batch(labels=labels))
    assert int(found["accuracy"].total) == 1
    assert int(found["top5"].total) == 5


def test_a_mixed_picture_is_partly_of_either_class() -> None:
    """The loss is that of soft targets, smoothed before they are mixed."""
    mixed = batch(mixing=Mixing(mixup=0.5, cutmix=None), seed=3)
    prepared = mixed.prepared(NORMALISE)
    logits = torch.randn(6, 3)
    found = ImageClassificationLoss(normalise=NORMALISE, smoothing=0.1)(Said(logits), mixed)
    hot = F.one_hot(prepared.labels, 3) * 0.9 + 0.1 / 3
    other = F.one_hot(prepared.others, 3) * 0.9 + 0.1 / 3
    share = prepared.kept[:, None]
    targets = share * hot + (1 - share) * other
    torch.testing.assert_close(found.total, -(targets * logits.log_softmax(-1)).sum())
    assert (prepared.labels != prepared.others).any()


def test_filler_counts_as_nothing() -> None:
    model = small_model("vit", "classification")
    for mixing in (None, Mixing()):
        plain, filled = (batch(filler, mixing=mixing, seed=1) for filler in (0, 3))
        mine, theirs = (ImageClassificationLoss(normalise=NORMALISE).measure(model, each) for each in (plain, filled))
        for name in mine:
            torch.testing.assert_close(mine[name].total, theirs[name].total)
            assert theirs[name].count == 6


def test_a_teacher_sees_what_its_student_sees() -> None:
    changed = batch(augment=Flip(), mixing=Mixing(), seed=5)
    model = small_model("vit", "classification")
    loss = DistillationLoss(model, ImageClassificationLoss(normalise=NORMALISE), hard=0.0).measure(model, changed)
    torch.testing.assert_close(loss["soft"].total, torch.tensor(0.0), atol=1e-5, rtol=0)


def test_distillation_through_a_token_is_its_equation() -> None:
    model = small_model("deit", "distilled")
    teacher = Said(torch.eye(3).repeat(2, 1) * 4)
    changed = batch(mixing=Mixing(mixup=0.5, cutmix=None), seed=3)
    found = HardDistillationLoss(teacher, normalise=NORMALISE).measure(model, changed)
    prepared = changed.prepared(NORMALISE)
    by_class, by_teacher = model.head.both(model.states(prepared.images, model.context(prepared.images)))
    taught = F.cross_entropy(by_teacher, torch.tensor([0, 1, 2, 0, 1, 2]), reduction="sum")
    share = prepared.kept
    labels = (
        share * F.cross_entropy(by_class, prepared.labels, reduction="none")
        + (1 - share) * F.cross_entropy(by_class, prepared.others, reduction="none")
    ).sum()
    torch.testing.assert_close(found["loss"].total, (labels + taught) / 2)
    assert not any(parameter.requires_grad for parameter in teacher.parameters())


def test_a_model_without_the_token_is_told() -> None:
    loss = HardDistillationLoss(Said(torch.zeros(6, 3)), normalise=NORMALISE)
    with pytest.raises(QkvError, match="distilled head"):
        loss(small_model("vit", "classification"), batch())


def test_pictures_can_be_learned() -> None:
    """Three classes that differ in their colour, from changed and mixed pictures, seen right when plain."""
    torch.manual_seed(0)
    pixels = np.random.default_rng(0).integers(0, 120, (60, 12, 12, 3)).astype(np.uint8)
    labels = np.arange(60) % 3
    pixels[np.arange(60), :, :, labels] += 100
    data = ImageRows(pixels, labels, NAMES)
    from qkv.models.catalogue import build

    example = small_model("vit", "classification")
    model = build("vit", example.sizes, example.head_choice)
    objective = ImageClassificationLoss(normalise=NORMALISE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = Batches(data.anew(0, Flip(), Mixing(mixup=0.2, cutmix=None, probability=0.5)), RowCount(20), prefetch=0)
    for _ in range(20):
        for some in batches:
            optimizer.zero_grad()
            loss = objective(model, some)
            (loss.total / loss.count).backward()
            optimizer.step()
    model.eval()
    whole = data.batch(PlannedBatch(np.arange(60), 1, 1))
    assert int(objective.measure(model, whole)["accuracy"].total) >= 57


@torch.no_grad()
def test_a_teacher_may_read_other_values_sizes_and_classes() -> None:
    class Told(nn.Module):
        """Keeps what it is shown."""

        def forward(self, images: Tensor) -> Tensor:
            self.images = images
            return images.mean((2, 3))

    theirs, pixels = Normalise(1 / 255, (0.1, 0.2, 0.3), (0.3, 0.2, 0.1)), batch().pixels
    told = Told()
    found = SeenAnew(told, NORMALISE, theirs, (12, 12), (2, 0, 1))(NORMALISE(pixels))
    torch.testing.assert_close(told.images, theirs(pixels), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found, theirs(pixels).mean((2, 3))[:, [2, 0, 1]], atol=1e-5, rtol=1e-4)
    SeenAnew(told, NORMALISE, NORMALISE, (20, 16), (0, 1, 2))(NORMALISE(pixels))
    assert told.images.shape == (6, 3, 20, 16)
