"""Distillation: a small model learns a task from a large one that knows it. [hinton2015]

teacher = qkv.load("runs/sentiment")
how = qkv.FineTuning(distil=qkv.Distillation(teacher, states=1.0))
qkv.fine_tune_classifier(qkv.student_of(teacher, layers=3), data, "runs/student", how=how)
"""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from qkv.errors import QkvError
from qkv.generate.reader import TextReader
from qkv.models.catalogue import attention_of, build
from qkv.models.text_model import TextModel
from qkv.train.objectives.distillation import DistillationLoss, Match, SameAttention, SameStates
from qkv.train.student import spread_evenly, take_layers

Reader = TypeVar("Reader", bound=TextReader)


def student_of(teacher: Reader, layers: int) -> Reader:
    """A model of fewer layers, which begins with some of its teacher's, spread evenly, and its head. [sanh2019 §3]"""
    model = teacher.model
    chosen = spread_evenly(layers, model.sizes.layers)
    sizes, attention = replace(model.sizes, layers=layers), attention_of(model)
    student: TextModel = build(model.family, sizes, model.head_choice, attention)
    take_layers(student.to(next(model.parameters()).device), model, chosen)
    return teacher.with_model(student)


@dataclass(frozen=True)
class Distillation:
    """What a student learns of its teacher: its predictions, and on request its stream and its attention.

    The loss is `soft`·T²·KL of the predictions softened by the temperature T, (1 − `soft`) times that of the right
    answers, and the mean squares between the streams and between the attention weights, each times its weight. Layers
    of the student are matched with ones of the teacher that are spread evenly.
    """

    teacher: TextReader
    temperature: float = 2.0
    soft: float = 0.5
    states: float = 0.0  # weight of the streams after each layer
    attention: float = 0.0  # weight of the attention weights of each layer

    def objective(self, task: Any, student: TextReader, pairs: bool = False) -> DistillationLoss:
        """The objective of a task, learned from the teacher too; a teacher that would be misread is refused."""
        if not hasattr(task, "predictions"):
            raise QkvError(f"A student learns decisions from its teacher, and a {type(task).__name__} asks for none.")
        if not 0 <= self.soft <= 1:
            raise QkvError(f"The teacher's share of the loss must lie between 0 and 1, but is {self.soft}.")
        self._check(student, pairs)
        return DistillationLoss(
            self.teacher.model,
            task,
            temperature=self.temperature,
            soft=self.soft,
            hard=1 - self.soft,
            matches=self._matches(student.model),
        )

    def _check(self, student: TextReader, pairs: bool) -> None:
        teacher, own = self.teacher.model, student.model
        if teacher is own:
            raise QkvError("A model cannot be its own teacher: give a student, such as student_of(teacher, layers).")
        if teacher.head_choice != own.head_choice:
            raise QkvError(
                f"The student is to tell {_told(own)}, and its teacher tells {_told(teacher)}: they must agree, labels "
                "in the same order."
            )
        if self.teacher.tokenizer.names() != student.tokenizer.names():
            raise QkvError("The student cuts texts into other tokens than its teacher: give models of one vocabulary.")
        if own.embed.tells_segments and not teacher.embed.tells_segments:
            raise QkvError("The student tells segments apart and its teacher does not: give models that both do.")
        if pairs and not own.embed.tells_segments and teacher.embed.tells_segments:
            raise QkvError("The teacher tells the texts of a pair apart by segments, which the student has none of.")

    def _matches(self, student: TextModel) -> list[Match]:
        mine, theirs = student.sizes, self.teacher.model.sizes
        if not self.states and not self.attention:
            return []
        layers = [(i, j + 1) for i, j in enumerate(spread_evenly(mine.layers, theirs.layers), start=1)]
        matches: list[Match] = []
        if self.states:
            if mine.width != theirs.width:
                raise QkvError(
                    f"Streams can be matched where they are equally wide: the student's is {mine.width} wide, the "
                    f"teacher's {theirs.width}."
                )
            matches.append(SameStates(layers=layers, weight=self.states))
        if self.attention:
            if mine.heads != theirs.heads:
                raise QkvError(
                    f"Attention can be matched where there are as many heads: the student has {mine.heads}, the "
                    f"teacher {theirs.heads}."
                )
            matches.append(SameAttention(layers=layers, weight=self.attention))
        return matches


def _told(model: TextModel) -> str:
    return ", ".join(model.head_choice.labels) or model.head_choice.kind
