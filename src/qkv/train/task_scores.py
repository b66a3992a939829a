"""What a model says about held-out texts, and the figures that people expect for each task.

Every class here is a function of the model for the loop's `evaluate`. Shapes: b rows, s slots, c classes, d width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qkv.data.answers import FoundAnswer, SpanRows, best_threshold, find_answers
from qkv.data.batches import ordered_batches
from qkv.data.encoding import Encoding
from qkv.data.questions import Question
from qkv.data.rows import Rows, TensorBatch
from qkv.data.tagged import TagRows, tags_of_words
from qkv.models.text_model import TextModel
from qkv.train.metrics_of_answers import answer_f1, exact_match
from qkv.train.metrics_of_tags import entity_score
from qkv.train.objectives.labels import span_scores
from qkv.train.objectives.reading import answer

AT_ONCE = 8192  # tokens of a batch, padding counted
Evaluate = Callable[[nn.Module], Mapping[str, float]]


@torch.no_grad()
def said_about(rows: Rows[Any], say: Callable[[Any], Sequence[Any]], model: nn.Module) -> list[Any]:
    """What `say` makes of a batch, row by row, in the order of the rows; a text in several windows has several rows."""
    device = next(model.parameters()).device
    found: list[Any] = [None] * len(rows.original)
    numbered = _Numbered(rows)
    for places, batch in ordered_batches(numbered, max(AT_ONCE, int(rows.sizes[0].max()))):
        for place, one in zip(places.tolist(), say(batch.to(device)), strict=True):
            found[place] = one
    return found


@dataclass(frozen=True)
class _Numbered:
    """Rows that are known by their own place and not by that of their example."""

    rows: Rows[Any]

    @property
    def original(self) -> NDArray[np.int64]:
        return np.arange(len(self.rows.original))

    @property
    def sizes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return self.rows.sizes

    def batch(self, planned: Any) -> TensorBatch:
        made: TensorBatch = self.rows.batch(planned)
        return made


@dataclass(frozen=True)
class TagScores:
    """Accuracy over words, and the F1 of whole entities where the tags mark entities."""

    rows: TagRows
    encodings: Sequence[Encoding]
    right: Sequence[Sequence[str]]  # the tags of all words, as they were given
    names: Sequence[str]

    def __call__(self, model: TextModel) -> dict[str, float]:
        tags = self.tags(model)
        words = [pair for mine, theirs in zip(tags, self.right, strict=True) for pair in zip(mine, theirs, strict=True)]
        figures = {"accuracy": sum(mine == theirs for mine, theirs in words) / len(words)}
        if "O" in self.names and all(name == "O" or name[1:2] == "-" for name in self.names):
            precision, recall, f1 = entity_score(tags, self.right)
            figures |= {"precision": precision, "recall": recall, "f1": f1}
        return figures

    def tags(self, model: TextModel) -> list[list[str]]:
        """A tag for every word; words beyond the longest text that the model reads get O, or the first tag."""
        otherwise = self.names.index("O") if "O" in self.names else 0
        said = said_about(self.rows, lambda batch: answer(model, batch).argmax(-1).tolist(), model)
        found = [[self.names[otherwise]] * len(words) for words in self.right]
        for encoding, predicted in zip(self.encodings, said, strict=True):
            known = {word for word in encoding.words if word is not None}
            tags = tags_of_words(encoding, predicted, len(self.right[encoding.row]), otherwise)
            for word in known:
                found[encoding.row][word] = self.names[tags[word]]
        return found


@dataclass(frozen=True)
class AnswerScores:
    """Exact match and F1 of answers to questions.

    Without a `threshold` it is chosen so that these very questions score best, as is the custom where some have no
    answer [devlin2019 §4.3]; choose it on other questions than those you report on.
    """

    rows: SpanRows
    encodings: Sequence[Encoding]
    questions: Sequence[Question]
    threshold: float | None = None

    def __call__(self, model: TextModel) -> dict[str, float]:
        found, right = self.answers(model), [[each.text for each in one.answers] for one in self.questions]
        threshold = self.threshold
        if threshold is None:
            given = [answer_f1([one.best], [texts]) for one, texts in zip(found, right, strict=True)]
            withheld = [answer_f1([""], [texts]) for texts in right]
            threshold = best_threshold([one.none for one in found], given, withheld)
        said = ["" if one.none > threshold else one.best for one in found]
        return {"exact_match": exact_match(said, right), "f1": answer_f1(said, right), "threshold": threshold}

    def answers(self, model: TextModel) -> list[FoundAnswer]:
        def scores(batch: Any) -> list[Tensor]:
            return list(torch.stack(span_scores(model, batch), -1).cpu())  # b times [s 2]

        both = [each.numpy() for each in said_about(self.rows, scores, model)]
        starts, ends = [each[:, 0] for each in both], [each[:, 1] for each in both]
        contexts = [question.context for question in self.questions]
        return find_answers(self.encodings, starts, ends, contexts, threshold=self.threshold or 0.0)
