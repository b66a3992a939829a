"""Decisions about a text: its class, its number, the tags of its words, where an answer stands. [devlin2019 §4]

Shapes: b rows, s slots, c classes.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.answers import SpanBatch
from qkv.data.labelled import ClassBatch, ValueBatch
from qkv.data.tagged import TagBatch
from qkv.errors import QkvError
from qkv.models.text_model import TextModel
from qkv.parts.context import Ledger
from qkv.parts.precision import widened
from qkv.train.objectives.cross_entropy import check_smoothing
from qkv.train.objectives.loss import Loss, Predictions
from qkv.train.objectives.reading import answer


@dataclass(frozen=True, kw_only=True)
class ClassificationLoss:
    """Cross-entropy of the class of each text; `weights` make rare classes count more."""

    counts: ClassVar[str] = "texts"

    smoothing: float = 0.0
    weights: tuple[float, ...] | None = None  # one a class

    def __post_init__(self) -> None:
        check_smoothing(self.smoothing)

    def __call__(self, model: TextModel, batch: ClassBatch) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: TextModel, batch: ClassBatch, ledger: Ledger | None = None) -> dict[str, Loss]:
        """The loss, and the share of right decisions."""
        logits = self.predictions(model, batch, ledger).logits  # [b c]
        loss = class_entropy(logits, batch.labels, self.smoothing, self.weights)
        right = (logits.argmax(-1) == batch.labels).sum()
        return {"loss": Loss(loss, batch.labelled), "accuracy": Loss(right, batch.labelled)}

    def predictions(self, model: TextModel, batch: ClassBatch, ledger: Ledger | None = None) -> Predictions:
        return Predictions(answer(model, batch, ledger), batch.labels, batch.labels >= 0, batch.labelled)


@dataclass(frozen=True, kw_only=True)
class TagLoss:
    """Cross-entropy of the tag of each word, read at its first piece. [devlin2019 §5.3]"""

    counts: ClassVar[str] = "words"

    smoothing: float = 0.0
    weights: tuple[float, ...] | None = None  # one a tag

    def __post_init__(self) -> None:
        check_smoothing(self.smoothing)

    def __call__(self, model: TextModel, batch: TagBatch) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: TextModel, batch: TagBatch, ledger: Ledger | None = None) -> dict[str, Loss]:
        """The loss, and the share of words that are tagged right."""
        logits = self.predictions(model, batch, ledger).logits  # [b s c]
        loss = class_entropy(logits.flatten(0, 1), batch.tags.flatten(), self.smoothing, self.weights)
        right = (logits.argmax(-1) == batch.tags).sum()
        return {"loss": Loss(loss, batch.tagged), "accuracy": Loss(right, batch.tagged)}

    def predictions(self, model: TextModel, batch: TagBatch, ledger: Ledger | None = None) -> Predictions:
        return Predictions(answer(model, batch, ledger), batch.tags, batch.tags >= 0, batch.tagged)


@dataclass(frozen=True)
class RegressionLoss:
    """Squared distance between a number and the one logit of a text."""

    counts: ClassVar[str] = "texts"

    def __call__(self, model: TextModel, batch: ValueBatch) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: TextModel, batch: ValueBatch, ledger: Ledger | None = None) -> dict[str, Loss]:
        logits = answer(model, batch, ledger)  # [b 1]
        if logits.shape[-1] != 1:
            raise QkvError(f"A number needs a head with one label, but this model's has {logits.shape[-1]}.")
        distances = (widened(logits.squeeze(-1)) - batch.values).square()  # [b]
        return {"loss": Loss(distances.masked_fill(batch.values.isnan(), 0).sum(), batch.valued)}


@dataclass(frozen=True)
class SpanLoss:
    """Cross-entropy of the token where an answer begins and of the one where it ends, half each. [devlin2019 §4.2]"""

    counts: ClassVar[str] = "questions"

    def __call__(self, model: TextModel, batch: SpanBatch) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: TextModel, batch: SpanBatch, ledger: Ledger | None = None) -> dict[str, Loss]:
        """The loss, and the share of rows where both ends are right."""
        starts, ends = span_scores(model, batch, ledger)  # [b s] each
        first = class_entropy(starts, batch.starts)
        last = class_entropy(ends, batch.ends)
        right = (starts.argmax(-1) == batch.starts) & (ends.argmax(-1) == batch.ends)
        return {"loss": Loss((first + last) / 2, batch.asked), "exact": Loss(right.sum(), batch.asked)}

    def predictions(self, model: TextModel, batch: SpanBatch, ledger: Ledger | None = None) -> Predictions:
        starts, ends = span_scores(model, batch, ledger)
        wanted = torch.cat([batch.starts, batch.ends])
        return Predictions(torch.cat([starts, ends]), wanted, wanted >= 0, 2 * batch.asked)


def span_scores(model: TextModel, batch: SpanBatch, ledger: Ledger | None = None) -> tuple[Tensor, Tensor]:
    """How well an answer begins, and ends, at each token; padding can be neither. [b s] [b s]"""
    scores = widened(answer(model, batch, ledger))  # [b s 2]
    padding = torch.arange(scores.shape[1], device=scores.device) >= batch.lengths[:, None]  # [b s]
    # The least finite number and not −∞, whose product with a teacher's zero would be no number.
    starts, ends = scores.masked_fill(padding[..., None], torch.finfo(scores.dtype).min).unbind(-1)
    return starts, ends


def class_entropy(
    logits: Tensor, wanted: Tensor, smoothing: float = 0.0, weights: tuple[float, ...] | None = None
) -> Tensor:
    """Sum of the cross-entropies; wanted -1 counts as nothing. [n c] [n] → []"""
    if weights is not None and len(weights) != logits.shape[-1]:
        raise QkvError(f"There are {len(weights)} class weights, but the model has {logits.shape[-1]} classes.")
    scale = None if weights is None else torch.tensor(weights, device=logits.device)
    return F.cross_entropy(
        widened(logits), wanted, weight=scale, ignore_index=-1, reduction="sum", label_smoothing=smoothing
    )
