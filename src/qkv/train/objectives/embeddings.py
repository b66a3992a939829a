"""Texts that mean the same should lie near each other: losses over embeddings. [reimers2019 §3]

Shapes: b groups, g texts of a group, d width, c candidates.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.data.contrast import GroupBatch
from qkv.errors import QkvError
from qkv.models.text_model import TextModel
from qkv.parts.precision import widened, without_autocast
from qkv.train.objectives.labels import class_entropy
from qkv.train.objectives.loss import Loss
from qkv.train.objectives.reading import answer


@dataclass(frozen=True, kw_only=True)
class ContrastiveLoss:
    """Which of all the second (third, …) texts of the batch belongs to the first: those of the other groups are the
    wrong answers [henderson2017 §4.4], cosines times `scale` the logits."""

    counts: ClassVar[str] = "groups"
    compares_rows: ClassVar[bool] = True

    scale: float = 20.0

    def __call__(self, model: TextModel, batch: GroupBatch) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: TextModel, batch: GroupBatch) -> dict[str, Loss]:
        """The loss, and the share of texts that find their own."""
        anchors, *others = embeddings(model, batch)  # [b d] each
        candidates = torch.cat(list(others))  # [c d]
        scores = cosines(anchors, candidates) * self.scale  # [b c]
        right = torch.arange(batch.groups, device=scores.device)
        scores = scores.masked_fill(same_as_own(batch), -torch.inf)
        loss = F.cross_entropy(scores, right, reduction="sum")
        found = (scores.argmax(-1) == right).sum()
        return {"loss": Loss(loss, batch.groups), "accuracy": Loss(found, batch.groups)}


@dataclass(frozen=True)
class CosineLoss:
    """Squared distance between the cosine of two texts and the number that says how alike they are. [reimers2019 §3]"""

    counts: ClassVar[str] = "groups"

    def __call__(self, model: TextModel, batch: GroupBatch) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: TextModel, batch: GroupBatch) -> dict[str, Loss]:
        first, second = embeddings(model, batch)
        distances = F.cosine_similarity(first, second) - needed_values(batch)
        return {"loss": Loss(distances.square().sum(), batch.groups)}


@dataclass(frozen=True, kw_only=True)
class TripletLoss:
    """max(|a − p| − |a − n| + margin, 0): an anchor is nearer to its like than to another text. [reimers2019 §3]"""

    counts: ClassVar[str] = "groups"

    margin: float = 1.0

    def __call__(self, model: TextModel, batch: GroupBatch) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: TextModel, batch: GroupBatch) -> dict[str, Loss]:
        """The loss, and the share of triplets in the right order."""
        if batch.texts != 3:
            raise QkvError(f"A triplet is three texts, but there are groups of {batch.texts}.")
        anchor, like, unlike = embeddings(model, batch)
        near, far = (anchor - like).norm(dim=-1), (anchor - unlike).norm(dim=-1)  # [b] each
        loss = F.relu(near - far + self.margin).sum()
        return {"loss": Loss(loss, batch.groups), "accuracy": Loss((near < far).sum(), batch.groups)}


class PairClassifier(nn.Module):
    """An encoder under training with what only its training needs: W (u, v, |u − v|) decides about two embeddings.

    [reimers2019 §3]; what is kept afterwards is the `encoder`.
    """

    def __init__(self, encoder: TextModel, width: int, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.out = nn.Linear(3 * width, classes, bias=False)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """[b d] [b d] → [b classes]"""
        logits: Tensor = self.out(torch.cat([first, second, (first - second).abs()], -1))
        return logits


@dataclass(frozen=True)
class PairClassLoss:
    """Cross-entropy of the class of two texts, such as entailment, decided from their embeddings. [reimers2019 §3]"""

    counts: ClassVar[str] = "groups"

    def __call__(self, model: PairClassifier, batch: GroupBatch) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: PairClassifier, batch: GroupBatch) -> dict[str, Loss]:
        """The loss, and the share of right decisions."""
        first, second = embeddings(model.encoder, batch)
        labels = needed_values(batch)
        logits = model(first, second)
        loss = class_entropy(logits, labels)
        return {"loss": Loss(loss, batch.groups), "accuracy": Loss((logits.argmax(-1) == labels).sum(), batch.groups)}


def embeddings(model: TextModel, batch: GroupBatch) -> Tensor:
    """One vector a text. [g b d]"""
    sizes = int(batch.texts), int(batch.groups)  # asked for on the host, which makes shapes: a record is told so
    return widened(answer(model, batch)).unflatten(0, sizes)


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """The cosine of every angle between two sets of vectors. [b d] [c d] → [b c]"""
    with without_autocast(first):  # in bfloat16 near neighbours would coincide
        return F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).T


def same_as_own(batch: GroupBatch) -> Tensor:
    """Candidates of other groups that are the very text which is right: they are no wrong answers. [b c]"""
    own = batch.ids[batch.groups : 2 * batch.groups]  # [b s]
    candidates = batch.ids[batch.groups :]  # [c s]
    same = (own[:, None] == candidates[None]).all(-1)  # [b c]; rows are padded alike, so equal texts are equal rows
    return same & ~torch.eye(len(own), len(candidates), dtype=torch.bool, device=own.device)


def needed_values(batch: GroupBatch) -> Tensor:
    if batch.values is None or batch.texts != 2:
        raise QkvError("This objective needs pairs of texts with a value each.")
    return batch.values
