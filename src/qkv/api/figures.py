"""Figures of a model on held-out texts, each task's own: functions for the `evaluate` of a fine-tuning."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch.nn.functional as F

from qkv.data.answers import SpanRows
from qkv.data.encoding import Encoding, Limit
from qkv.data.labelled import LabelledTexts, RatedTexts
from qkv.data.questions import Question
from qkv.data.tagged import TaggedWords, TagRows
from qkv.errors import QkvError, nearest_or_all
from qkv.generate.reader import TextReader
from qkv.generate.readers import Answerer, Classifier, Rater, SentenceEncoder, Tagger
from qkv.train.metrics_of_labels import accuracy, macro_f1, matthews, pearson, spearman
from qkv.train.task_scores import AnswerScores, TagScores

LABEL_METRICS = {"accuracy": accuracy, "macro_f1": macro_f1, "matthews": matthews}
TAG_METRICS = ("accuracy", "f1", "precision", "recall")
ANSWER_METRICS = ("exact_match", "f1")
SIMILARITY_METRICS = {"spearman": spearman, "pearson": pearson}
STRIDE = 128  # tokens that windows of a long context share


def check_metrics(metrics: Sequence[str], known: Sequence[str]) -> list[str]:
    """Names as figures have them; a person may write macro-f1."""
    found = [name.replace("-", "_").lower() for name in metrics]
    for name, spelled in zip(found, metrics, strict=True):
        if name not in known:
            raise QkvError(f"There is no metric called {spelled} for this task: {nearest_or_all(name, known)}")
    return found


@dataclass(frozen=True)
class LabelFigures:
    """How well labels are told, of texts or of pairs."""

    data: LabelledTexts
    metrics: Sequence[str]

    def __call__(self, classifier: Classifier) -> dict[str, float]:
        place = {name: number for number, name in enumerate(self.data.names)}
        said = [place[found.label] for found in classifier.run(self.data.texts, self.data.seconds)]
        right = self.data.numbers().tolist()
        return {name: LABEL_METRICS[name](said, right) for name in self.metrics}


@dataclass(frozen=True)
class RatingFigures:
    """Whether texts, or pairs, are ordered by their numbers."""

    data: RatedTexts
    metrics: Sequence[str]

    def __call__(self, rater: Rater) -> dict[str, float]:
        said = rater.run(self.data.texts, self.data.seconds)
        return {name: SIMILARITY_METRICS[name](said, self.data.values) for name in self.metrics}


@dataclass(frozen=True)
class TagFigures:
    """How well words are tagged, and with f1 whole entities."""

    data: TaggedWords
    metrics: Sequence[str]

    def __call__(self, tagger: Tagger) -> dict[str, float]:
        longest = tagger.model.longest
        limit = None if longest is None else Limit(longest, stride=0)
        encodings = tagger.tokenizer.encode_words(self.data.words, limit=limit)
        rows = TagRows.from_encodings(encodings, self.data.numbers(), pad=_pad(tagger))
        return _chosen(TagScores(rows, encodings, self.data.tags, self.data.names)(tagger.model), self.metrics)


@dataclass(frozen=True)
class AnswerFigures:
    """Exact match and F1 of answers, none given where none is better."""

    questions: Sequence[Question]
    metrics: Sequence[str]

    def __call__(self, answerer: Answerer) -> dict[str, float]:
        longest = answerer.model.longest
        encodings: list[Encoding] = answerer.tokenizer.encode_pairs(
            [each.question for each in self.questions],
            [each.context for each in self.questions],
            limit=answerer.limit("second", None if longest is None else min(STRIDE, longest // 4)),
        )
        rows = SpanRows.from_encodings(encodings, self.questions, pad=_pad(answerer))
        rows = rows if answerer.model.embed.tells_segments else rows.without_segments()
        return _chosen(AnswerScores(rows, encodings, self.questions, threshold=0.0)(answerer.model), self.metrics)


@dataclass(frozen=True)
class SimilarityFigures:
    """Whether pairs are ordered by how alike they are."""

    pairs: Sequence[Sequence[str]]
    values: Sequence[float]
    metrics: Sequence[str]

    def __call__(self, encoder: SentenceEncoder) -> dict[str, float]:
        first, second = (encoder.run([pair[side] for pair in self.pairs]) for side in (0, 1))
        said = F.cosine_similarity(first.float(), second.float()).tolist()
        return {name: SIMILARITY_METRICS[name](said, self.values) for name in self.metrics}


def _chosen(figures: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    for name in names:
        if name not in figures:
            raise QkvError(f"The metric {name} needs tags that mark entities, such as B-PER, I-PER and O.")
    return {name: figures[name] for name in names}


def _pad(reader: TextReader) -> int:
    return reader.tokenizer.pad if reader.tokenizer.has("pad") else 0
