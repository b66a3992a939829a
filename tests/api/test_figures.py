"""Figures of models that say what a test tells them to say."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from qkv.api.figures import (
    LABEL_METRICS,
    AnswerFigures,
    LabelFigures,
    SimilarityFigures,
    TagFigures,
    check_metrics,
)
from qkv.api.loading import load
from qkv.data.labelled import LabelledTexts
from qkv.data.questions import Answer, Question
from qkv.data.tagged import TaggedWords
from qkv.errors import QkvError
from tests.api.corpus import VERSES
from tests.cli.text_models import save_reader


def test_labels_that_are_all_right_or_all_wrong(tmp_path: Path) -> None:
    classifier = load(save_reader(tmp_path, "classifier"))
    said = [found.label for found in classifier.run(VERSES)]
    other = {"bad": "good", "good": "bad"}
    right = LabelledTexts(VERSES, None, said, ("bad", "good"))
    wrong = replace(right, labels=[other[label] for label in said])
    assert LabelFigures(right, list(LABEL_METRICS))(classifier)["accuracy"] == 1
    figures = LabelFigures(wrong, list(LABEL_METRICS))(classifier)
    assert (figures["accuracy"], figures["macro_f1"]) == (0, 0)


def test_tags_of_words_as_they_were_given(tmp_path: Path) -> None:
    tagger = load(save_reader(tmp_path, "tagger"))
    words = [verse.replace(",", "").replace(".", "").replace(":", "").replace(";", "").split() for verse in VERSES]
    said = [[one.label for one in found] for found in tagger.run([" ".join(row) for row in words])]
    data = TaggedWords(words, said, ("NAME", "O"))
    assert TagFigures(data, ["accuracy"])(tagger) == {"accuracy": 1}
    with pytest.raises(QkvError, match="mark entities"):
        TagFigures(data, ["f1"])(tagger)


def test_answers_that_are_given(tmp_path: Path) -> None:
    answerer = load(save_reader(tmp_path, "answerer"))
    found = answerer.run(["who?"] * len(VERSES), VERSES)
    questions = [
        Question("who?", verse, (Answer(one.text, verse.index(one.text)),) if one.text else ())
        for verse, one in zip(VERSES, found, strict=True)
    ]
    assert AnswerFigures(questions, ["exact_match", "f1"])(answerer) == {"exact_match": 1, "f1": 1}


def test_pairs_in_their_order(tmp_path: Path) -> None:
    encoder = load(save_reader(tmp_path, "embedding"))
    pairs = list(itertools.pairwise(VERSES))
    cosines = torch.stack([encoder.similarities([a], [b])[0, 0] for a, b in pairs])
    assert SimilarityFigures(pairs, cosines.tolist(), ["spearman"])(encoder)["spearman"] == pytest.approx(1)
    assert SimilarityFigures(pairs, (-cosines).tolist(), ["pearson"])(encoder)["pearson"] == pytest.approx(-1)


def test_metrics_by_the_names_that_people_write() -> None:
    assert check_metrics(["macro-f1", "Accuracy"], list(LABEL_METRICS)) == ["macro_f1", "accuracy"]
    with pytest.raises(QkvError, match="did you mean matthews"):
        check_metrics(["mathews"], list(LABEL_METRICS))
