"""A small model learns from a large one: from its predictions, its stream and its attention. [hinton2015]

Shapes: b rows, s slots, n predictions, c classes, d width of the student, e of the teacher, h heads, q queries, k keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qkv.errors import QkvError
from qkv.parts.precision import widened
from qkv.train.objectives.cross_entropy import smoothed_cross_entropy
from qkv.train.objectives.entropy_of_rows import WIDENED_AT_ONCE
from qkv.train.objectives.loss import Loss, Predicting, Predictions
from qkv.train.objectives.trace import State, Trace, traced

Layers = Sequence[tuple[int, int]]  # (of the student, of the teacher)


class Match(Protocol):
    """Something of a student's pass that should be like the teacher's."""

    @property
    def weight(self) -> float: ...

    @property
    def reads_states(self) -> bool: ...

    @property
    def reads_weights(self) -> bool: ...

    def __call__(self, student: Trace, teacher: Trace, real: Tensor) -> Tensor:
        """How far they are apart, as a mean; `real` says which predictions count."""


@dataclass(frozen=True, kw_only=True)
class SameDirection:
    """1 − cosine between the streams of student and teacher at each real token. [sanh2019 §2]"""

    layers: Layers
    weight: float = 1.0
    reads_states: bool = field(default=True, init=False)
    reads_weights: bool = field(default=False, init=False)

    def __call__(self, student: Trace, teacher: Trace, real: Tensor) -> Tensor:
        apart = []
        for mine, theirs in self.layers:
            x, y, counts = beside(student.state(mine), teacher.state(theirs), real)
            same_width(x, y)
            apart.append(mean_over(1 - F.cosine_similarity(x, y, dim=-1), counts))
        return torch.stack(apart).mean()


@dataclass(frozen=True, kw_only=True)
class SameStates:
    """Mean square between the streams of student and teacher, through a map where widths differ. [jiao2020 §3.1]

    `Student` holds the map.
    """

    layers: Layers
    weight: float = 1.0
    project: nn.Module | None = None  # [… d] → [… e]; trained with the student
    reads_states: bool = field(default=True, init=False)
    reads_weights: bool = field(default=False, init=False)

    def __call__(self, student: Trace, teacher: Trace, real: Tensor) -> Tensor:
        apart = []
        for mine, theirs in self.layers:
            x, y, counts = beside(student.state(mine), teacher.state(theirs), real)
            if self.project is not None:
                x = widened(self.project(x))
            same_width(x, y)
            apart.append(mean_over((x - y).square().mean(-1), counts))
        return torch.stack(apart).mean()


@dataclass(frozen=True, kw_only=True)
class SameAttention:
    """Mean square between attention weights, head by head. [jiao2020 §3.1]

    DIFFERS [jiao2020]: weights after the softmax, which are what the ledger keeps; the paper compares scores before it.
    """

    layers: Layers  # counted from 1, in the order in which attentions run
    weight: float = 1.0
    reads_states: bool = field(default=False, init=False)
    reads_weights: bool = field(default=True, init=False)

    def __call__(self, student: Trace, teacher: Trace, real: Tensor) -> Tensor:
        apart = []
        for mine, theirs in self.layers:
            x, y = widened(student.attention(mine)), widened(teacher.attention(theirs))
            if x.shape != y.shape:
                raise QkvError(
                    f"Attention {mine} of the student has {x.shape[1]} heads and {theirs} of the teacher {y.shape[1]}: "
                    "only equal numbers can be matched."
                )
            # A row of weights sums to 1: queries that see nothing have none, and count as nothing.
            queries = (y.sum(-1) > 0.5).any(1)  # [b q]
            apart.append(mean_over((x - y).square().sum(-1).mean(1), queries))
        return torch.stack(apart).mean()


class Student(nn.Module):
    """A model under training with the maps that only its training needs; what is kept afterwards is the `model`."""

    def __init__(self, model: nn.Module, maps: Sequence[nn.Module]) -> None:
        super().__init__()
        self.model, self.maps = model, nn.ModuleList(maps)


class DistillationLoss:
    """hard·CE(right answers) + soft·T²·KL(teacher‖student at temperature T) + the matches, each times its weight.

    [hinton2015 §2], with what the teacher does on its way besides [sanh2019 §2] [jiao2020 §3.1]. `task` is the
    objective of the task, which says where predictions are asked for. All parts are summed over these; the mean of a
    match is added to every one of them.
    """

    def __init__(
        self,
        teacher: nn.Module,
        task: Predicting,
        *,
        temperature: float = 2.0,
        soft: float = 1.0,
        hard: float = 1.0,
        matches: Sequence[Match] = (),
    ) -> None:
        if temperature <= 0:
            raise QkvError(f"The temperature must be above 0, but is {temperature}.")
        if min([soft, hard, *(match.weight for match in matches)]) < 0:
            raise QkvError("The weights of a distillation must be 0 or more.")
        self.teacher = teacher.eval().requires_grad_(False)
        self.task, self.temperature, self.soft, self.hard = task, temperature, soft, hard
        self.matches = tuple(matches)

    @property
    def counts(self) -> str:
        """What the task counts."""
        return getattr(self.task, "counts", "tokens")

    def settings(self) -> dict[str, Any]:
        """What a run's record should know of it."""
        return dict(vars(self))

    def __call__(self, model: nn.Module, batch: Any) -> Loss:
        return self.measure(model, batch)["loss"]

    def measure(self, model: nn.Module, batch: Any) -> dict[str, Loss]:
        """The whole loss, what each part of it is before its weight, and the share of right decisions.

        `nll` is the part of the right answers.
        """
        student = model.model if isinstance(model, Student) else model
        self._follow(student)
        with torch.no_grad():
            theirs, said = self._pass(self.teacher, batch)
        mine, tried = self._pass(student, batch)
        if tried.logits.shape != said.logits.shape:
            raise QkvError(
                f"The student chooses between {tried.logits.shape[-1]} classes and the teacher between "
                f"{said.logits.shape[-1]}: they must be the same."
            )
        right, _ = smoothed_cross_entropy(tried.logits, tried.wanted.clamp(min=0), tried.real, 0.0)
        parts = {"soft": softened_divergence(tried.logits, said.logits, tried.real, self.temperature), "nll": right}
        total = self.soft * parts["soft"] + self.hard * right
        for number, match in enumerate(self.matches, start=1):
            apart = match(mine, theirs, tried.real) * tried.count
            parts[f"match_{number}"] = apart
            total = total + match.weight * apart
        parts["accuracy"] = ((tried.logits.argmax(-1) == tried.wanted) & tried.real).sum()
        return {"loss": Loss(total, tried.count), **{name: Loss(part, tried.count) for name, part in parts.items()}}

    def _pass(self, model: nn.Module, batch: Any) -> tuple[Trace, Predictions]:
        weights = any(match.reads_weights for match in self.matches)
        states = any(match.reads_states for match in self.matches)
        with traced(model, states=states, weights=weights) as trace:
            return trace, self.task.predictions(model, batch, trace.ledger if weights else None)

    def _follow(self, student: nn.Module) -> None:
        """The teacher stands where the student stands."""
        device = next(student.parameters()).device
        if next(self.teacher.parameters()).device != device:
            self.teacher.to(device)


def softened_divergence(student: Tensor, teacher: Tensor, real: Tensor, temperature: float) -> Tensor:
    """T²·KL(teacher‖student), both softened by T, summed over the real predictions. [… c] [… c] […] → []

    The factor keeps the size of the gradient whatever the temperature [hinton2015 §2].
    """

    def part(mine: Tensor, theirs: Tensor, counts: Tensor) -> Tensor:
        log_p = torch.log_softmax(widened(theirs) / temperature, -1)
        log_q = torch.log_softmax(widened(mine) / temperature, -1)
        apart = (log_p.exp() * (log_p - log_q)).sum(-1)  # [r]
        return apart.masked_fill(~counts, 0).sum()

    rows = max(1, WIDENED_AT_ONCE // student.shape[-1])
    flat = student.flatten(0, -2), teacher.flatten(0, -2), real.flatten()
    slices = zip(*(each.split(rows) for each in flat), strict=True)
    # What is widened to float32 is computed again on the way back and not kept.
    parts = [checkpoint(part, *some, use_reentrant=False, preserve_rng_state=False) for some in slices]
    return temperature**2 * torch.stack(parts).sum()


def beside(mine: State, theirs: State, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Both streams, and which of their tokens count: those that are no padding. [b s d] [b s e] [b s]"""
    if mine.documents is not None:
        counts = mine.documents > 0
    elif real.shape == mine.x.shape[:2]:
        counts = real  # a decoder is not told about padding, but its predictions are
    else:
        counts = torch.ones(mine.x.shape[:2], dtype=torch.bool, device=mine.x.device)
    return widened(mine.x), widened(theirs.x), counts


def same_width(mine: Tensor, theirs: Tensor) -> None:
    if mine.shape != theirs.shape:
        raise QkvError(
            f"The student's stream is {mine.shape[-1]} wide and the teacher's {theirs.shape[-1]}: give SameStates a "
            "map from one to the other."
        )


def mean_over(values: Tensor, counts: Tensor) -> Tensor:
    """The mean of those that count. [b s] [b s] → []"""
    return values.masked_fill(~counts, 0).sum() / counts.sum().clamp(min=1)
