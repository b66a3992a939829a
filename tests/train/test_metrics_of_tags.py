"""Entities found: equal to seqeval's score, and by hand."""

import json
from pathlib import Path

import pytest

from qkv.errors import QkvError
from qkv.train.metrics_of_tags import Entity, entities, entity_score

GOLDEN = json.loads((Path(__file__).parent / "fixtures" / "metric_scores.json").read_text())


def test_entities_score_as_seqeval_has_it():
    assert len(GOLDEN["tags"]) == 60
    for case in GOLDEN["tags"]:
        assert entity_score(case["said"], case["right"]) == pytest.approx(case["scores"], abs=1e-12)


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("B-PER I-PER O B-LOC", [("PER", 0, 1), ("LOC", 3, 3)]),
        ("B-PER B-PER", [("PER", 0, 0), ("PER", 1, 1)]),
        ("I-PER I-PER I-LOC", [("PER", 0, 1), ("LOC", 2, 2)]),
        ("B-PER E-PER S-LOC I-LOC", [("PER", 0, 1), ("LOC", 2, 2), ("LOC", 3, 3)]),
        ("O O", []),
        ("", []),
    ],
)
def test_entities_by_hand(tags, found):
    assert entities(tags.split()) == [Entity(*each) for each in found]


def test_half_an_entity_is_none():
    score = entity_score([["B-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "B-LOC"]])
    assert score == (0.5, 0.5, 0.5)
    assert entity_score([["O"]], [["O"]]) == (0.0, 0.0, 0.0)


def test_tags_that_mark_nothing_are_refused():
    with pytest.raises(QkvError, match="'NOUN' marks no entity"):
        entities(["NOUN"])
    with pytest.raises(QkvError, match="Sentence 0 has 1 tags, but 2"):
        entity_score([["O"]], [["O", "O"]])
    with pytest.raises(QkvError, match="1 and 0"):
        entity_score([["O"]], [])
