"""Where in a row an answer begins and ends, and back: from a model's scores to the text of an answer. [devlin2019 §4.2]

A context too long for a row is read in windows that overlap. In a window that does not hold the whole answer, as for a
question that has none, the answer is the row's first token, [CLS]. [devlin2019 §4.3]

Shapes: b rows of a batch, s slots, n rows, c tokens of the context in one row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from qkv.data.encoding import Encoding
from qkv.data.plan import PlannedBatch
from qkv.data.questions import Answer, Question
from qkv.data.text_rows import TaskRows, TextBatch, TextRows, with_filler
from qkv.data.token_rows import Ints
from qkv.errors import QkvError

Floats = NDArray[np.floating]
NO_ANSWER = 0  # the slot of the first token


@dataclass(frozen=True)
class SpanBatch(TextBatch):
    """Texts and the first and last token of the answer in each."""

    starts: Tensor  # [b] long, -1 in filler rows
    ends: Tensor  # [b] long
    asked: int  # rows that are not filler


@dataclass(frozen=True)
class SpanRows(TaskRows):
    """Questions with windows of their contexts, and where the answer stands in each."""

    starts: Ints  # [n]
    ends: Ints  # [n]

    @classmethod
    def from_encodings(cls, encodings: Sequence[Encoding], questions: Sequence[Question], *, pad: int) -> "SpanRows":
        """Of `TextTokenizer.encode_pairs(questions, contexts, limit=Limit(384, "second", stride=128))`, say.

        Of several answers the first is trained on.
        """
        spans = []
        for encoding in encodings:
            if not encoding.special[NO_ANSWER]:
                raise QkvError("Rows must begin with a token of their own, [CLS], for questions that have no answer.")
            answers = questions[encoding.row].answers
            spans.append(span_in(encoding, answers[0]) if answers else (NO_ANSWER, NO_ANSWER))
        starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
        return cls(TextRows.from_encodings(encodings, pad=pad), starts, ends)

    def batch(self, planned: PlannedBatch) -> SpanBatch:
        return SpanBatch(
            **self.texts.tensors(planned),
            starts=with_filler(self.starts, planned, -1),
            ends=with_filler(self.ends, planned, -1),
            asked=len(planned.rows),
        )


def span_in(encoding: Encoding, answer: Answer) -> tuple[int, int]:
    """The first and last token that touch the answer, or twice `NO_ANSWER` where the window does not hold all of it."""
    context = context_slots(encoding)
    first, last = answer.start, answer.start + len(answer.text)
    touching = [slot for slot in context if encoding.offsets[slot][0] < last and encoding.offsets[slot][1] > first]
    # Spaces at either end of an answer belong to no token in many tokenizers: the words must be there.
    said = answer.text.strip()
    begins = first + answer.text.index(said)
    if (
        not touching
        or encoding.offsets[touching[0]][0] > begins
        or encoding.offsets[touching[-1]][1] < begins + len(said)
    ):
        return NO_ANSWER, NO_ANSWER
    return touching[0], touching[-1]


def context_slots(encoding: Encoding) -> list[int]:
    """The slots of the second text's tokens."""
    return [slot for slot, side in enumerate(encoding.sides) if side == 1]


@dataclass(frozen=True)
class FoundAnswer:
    """The best answer to a question; its text is empty where none is better."""

    text: str
    score: float  # of the best stretch: its start's plus its end's
    none: float  # how much better it is to give no answer: above the threshold, the text is empty
    best: str  # the best stretch, whether it was given or not


def find_answers(
    encodings: Sequence[Encoding],
    starts: Sequence[Floats],
    ends: Sequence[Floats],
    contexts: Sequence[str],
    *,
    threshold: float = 0.0,
    longest: int = 30,
) -> list[FoundAnswer]:
    """One answer for each context, from the scores [s] of all its windows. [devlin2019 §4.2, §4.3]

    The best stretch of at most `longest` tokens over all windows; no answer where the first token scores better by more
    than `threshold`, even in the window where it scores least.
    """
    if not len(encodings) == len(starts) == len(ends):
        raise QkvError(f"{len(encodings)} rows need as many scores, but there are {len(starts)} and {len(ends)}.")
    best: dict[int, tuple[float, str]] = {}
    nothing: dict[int, float] = {}
    for encoding, begins, finishes in zip(encodings, starts, ends, strict=True):
        row = encoding.row
        none = float(begins[NO_ANSWER] + finishes[NO_ANSWER])
        nothing[row] = min(none, nothing.get(row, np.inf))
        slots = np.array(context_slots(encoding), np.int64)
        if not len(slots):
            continue
        scores = begins[slots][:, None] + finishes[slots][None]  # [c c]
        order = np.arange(len(slots))
        allowed = (order[None] >= order[:, None]) & (order[None] < order[:, None] + longest)
        scores = np.where(allowed, scores, -np.inf)
        first, last = np.unravel_index(int(scores.argmax()), scores.shape)
        score = float(scores[first, last])
        if row not in best or score > best[row][0]:
            stretch = contexts[row][encoding.offsets[slots[first]][0] : encoding.offsets[slots[last]][1]]
            best[row] = score, stretch.strip()
    found = []
    for row in range(len(contexts)):
        if row not in nothing:
            raise QkvError(f"Question {row} has no scores: each needs those of one row at least.")
        score, stretch = best.get(row, (-np.inf, ""))
        none = nothing[row] - score
        found.append(FoundAnswer("" if none > threshold else stretch, score, none, stretch))
    return found


def best_threshold(none: Sequence[float], right: Sequence[float], right_without: Sequence[float]) -> float:
    """The threshold under which held-out questions score best. [devlin2019 §4.3]

    `right` is what each question scores if its best stretch is given, `right_without` if no answer is.
    """
    if not none:
        raise QkvError("A threshold is chosen on held-out questions, and there are none.")
    order = np.argsort(none)
    gains = np.array(right, float)[order] - np.array(right_without, float)[order]
    totals = np.concatenate([[0.0], np.cumsum(gains)])  # [n + 1]: the first i questions get their stretch
    count = int(totals.argmax())
    values = np.array(none, float)[order]
    if count == 0:
        return float(values[0] - 1)
    return float(values[count - 1])
