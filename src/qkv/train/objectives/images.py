"""Decisions about pictures: their class, learned from plain, changed and mixed ones, or from a teacher.

Shapes: b pictures, c channels, h height, w width, k classes, s tokens, d width of the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.data.image_rows import ImageBatch, PreparedImages
from qkv.data.preprocessing import Normalise
from qkv.errors import QkvError
from qkv.models.image_model import ImageModel
from qkv.parts.context import Ledger
from qkv.parts.heads import DistilledHead
from qkv.parts.pixels import normalised
from qkv.parts.precision import widened
from qkv.train.objectives.cross_entropy import check_smoothing
from qkv.train.objectives.loss import Loss, Predictions

BEST = 5


@dataclass(frozen=True, kw_only=True)
class ImageClassificationLoss:
    """Cross-entropy of the class of each picture; of a mixed one, of both classes by their shares. [zhang2018 eq.1]

    `normalise` is that of the model's preprocessing.
    """

    counts: ClassVar[str] = "pictures"

    normalise: Normalise
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_smoothing(self.smoothing)

    def __call__(self, model: nn.Module, batch: ImageBatch) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: nn.Module, batch: ImageBatch) -> dict[str, Loss]:
        """The loss, and the share of pictures whose class is the likeliest, and among the five likeliest."""
        prepared = _prepared(batch, self.normalise)
        logits = model(prepared.images)  # [b k]
        loss = mixed_entropy(logits, prepared, self.smoothing)
        return {"loss": Loss(loss, batch.labelled), **right_answers(logits, batch)}

    def predictions(self, model: nn.Module, batch: ImageBatch, ledger: Ledger | None = None) -> Predictions:
        """What the model says of the very pictures that another model is asked about."""
        images = _prepared(batch, self.normalise).images
        logits = model(images) if ledger is None else model(images, ledger=ledger)
        return Predictions(logits, batch.labels, batch.labels >= 0, batch.labelled)


class HardDistillationLoss:
    """½ CE(class token, labels) + ½ CE(distillation token, what the teacher finds likeliest). [touvron2021 eq.3]

    The teacher is any module from pictures to logits [b k]; it sees the same changed and mixed pictures as the student.
    """

    counts: ClassVar[str] = "pictures"

    def __init__(self, teacher: nn.Module, *, normalise: Normalise, smoothing: float = 0.0) -> None:
        self.teacher = teacher.eval().requires_grad_(False)
        self.normalise = normalise
        check_smoothing(smoothing)
        self.smoothing = smoothing

    def settings(self) -> dict[str, Any]:
        """What a run's record should know of it."""
        return dict(vars(self))

    def __call__(self, model: ImageModel, batch: ImageBatch) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: ImageModel, batch: ImageBatch) -> dict[str, Loss]:
        """The loss, its two parts, and the share of right answers by the mean of the two, as the model is used."""
        if not isinstance(model.head, DistilledHead):
            raise QkvError("Distillation through a token of its own needs a model with a distilled head, such as DeiT.")
        prepared = _prepared(batch, self.normalise)
        self.teacher.to(prepared.images.device)
        with torch.no_grad():
            taught = self.teacher(prepared.images).argmax(-1)  # [b]
        ctx = model.context(prepared.images)
        by_class, by_teacher = model.head.both(model.states(prepared.images, ctx))  # [b k] each
        of_labels = mixed_entropy(by_class, prepared, self.smoothing)
        wanted = taught.masked_fill(batch.labels < 0, -1)
        of_teacher = F.cross_entropy(widened(by_teacher), wanted, ignore_index=-1, reduction="sum")
        parts = {"loss": (of_labels + of_teacher) / 2, "of_labels": of_labels, "of_teacher": of_teacher}
        told = {name: Loss(part, batch.labelled) for name, part in parts.items()}
        return {**told, **right_answers((by_class + by_teacher) / 2, batch)}


class Shared(Protocol):
    """The two classes of each row, -1 in filler, and how much of it is of its own."""

    @property
    def labels(self) -> Tensor: ...  # [b]

    @property
    def others(self) -> Tensor: ...  # [b]

    @property
    def kept(self) -> Tensor: ...  # [b]


class Classed(Protocol):
    @property
    def labels(self) -> Tensor: ...  # [b]

    @property
    def labelled(self) -> int: ...  # rows that are no filler


class SeenAnew(nn.Module):
    """A teacher that reads pictures in another way than its student: of other values, another size, in other classes.

    `own` is how the student's pictures are normalised, `theirs` how the teacher's are; `size` is what the teacher
    reads, None for any; `order` are the places of the student's classes among the teacher's.
    """

    def __init__(
        self, teacher: nn.Module, own: Normalise, theirs: Normalise, size: tuple[int, int] | None, order: Sequence[int]
    ) -> None:
        super().__init__()
        self.teacher, self.own, self.theirs, self.size, self.order = teacher, own, theirs, size, tuple(order)

    def forward(self, images: Tensor) -> Tensor:
        """[b c h w] → [b k]"""
        if self.own != self.theirs:
            images = self.theirs.of_values(self.own.undone(images))
        if self.size is not None and self.size != images.shape[-2:]:
            images = F.interpolate(images, self.size, mode="bilinear", antialias=True)
        logits: Tensor = self.teacher(images)
        if self.order == tuple(range(logits.shape[-1])):
            return logits
        return torch.stack([logits[:, place] for place in self.order], 1)


def _prepared(batch: ImageBatch, normalise: Normalise) -> PreparedImages:
    return batch.prepared(partial(normalised, normalise=normalise))


def mixed_entropy(logits: Tensor, prepared: Shared, smoothing: float = 0.0) -> Tensor:
    """Sum over the rows of kept·CE(own class) + (1 − kept)·CE(partner's class); filler counts as nothing."""
    wide = widened(logits)
    own, other = (
        F.cross_entropy(wide, labels, ignore_index=-1, reduction="none", label_smoothing=smoothing)  # [b]
        for labels in (prepared.labels, prepared.others)
    )
    return (prepared.kept * own + (1 - prepared.kept) * other).sum()


def right_answers(logits: Tensor, batch: Classed) -> dict[str, Loss]:
    """How many rows have their own class first, and among the first five."""
    best = logits.topk(min(BEST, logits.shape[-1]), -1).indices == batch.labels[:, None]  # [b 5]
    return {"accuracy": Loss(best[:, 0].sum(), batch.labelled), "top5": Loss(best.sum(), batch.labelled)}
