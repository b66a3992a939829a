"""Tags of words, lined up with pieces of words and back."""

import json
from pathlib import Path

import pytest

from qkv.data.batches import Batches
from qkv.data.encoding import Encoding
from qkv.data.plan import FixedShapes, TokenBudget
from qkv.data.tagged import TagRows, read_tagged, tags_of_words
from qkv.errors import QkvError


def encoding(words, row=0) -> Encoding:
    count = len(words)
    ids = tuple(range(10, 10 + count))
    return Encoding(ids, (0,) * count, ((0, 0),) * count, tuple(words), (0,) * count, (False,) * count, row)


def test_lists_or_spaces(tmp_path: Path):
    file = tmp_path / "a.jsonl"
    rows = [
        {"words": ["New", "York", "is"], "tags": ["B-LOC", "I-LOC", "O"]},
        {"words": "Ann is", "tags": "B-PER O"},
        {"words": "one two", "tags": "O"},
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    data = read_tagged(file)
    assert data.words == [["New", "York", "is"], ["Ann", "is"]]
    assert data.names == ("B-LOC", "B-PER", "I-LOC", "O")
    assert data.numbers() == [[0, 2, 3], [1, 3]]
    assert str(data.problems[0]).endswith("line 3: 2 words and 1 tags, where there should be as many")
    data = read_tagged(file, classes=["O", "B-LOC", "I-LOC"])
    assert len(data.words) == 1
    assert "the tag 'B-PER' is none of O, B-LOC, I-LOC" in str(data.problems[0])


def test_the_first_piece_of_a_word_has_its_tag():
    rows = TagRows.from_encodings([encoding([None, 0, 0, 1, 2, 2, None])], [[7, 8, 9]], pad=0)
    (batch,) = Batches(rows, TokenBudget(100))
    assert batch.tags.tolist() == [[-1, 7, -1, 8, 9, -1, -1]]
    assert batch.tagged == 3


def test_filler_and_padding_have_no_tags():
    rows = TagRows.from_encodings([encoding([0, 1]), encoding([0], row=1)], [[7, 8], [9]], pad=0)
    (batch,) = Batches(rows, FixedShapes(20, (4,)))
    assert batch.tags.shape == (4, 4)
    assert sorted(batch.tags[:2].tolist()) == [[7, 8, -1, -1], [9, -1, -1, -1]]
    assert (batch.tags[2:] == -1).all()
    assert batch.tagged == 3


def test_tags_of_words_come_from_their_first_pieces():
    assert tags_of_words(encoding([None, 0, 0, 1, None]), [5, 6, 7, 8, 9, 9, 9], 3, otherwise=0) == [6, 8, 0]
    with pytest.raises(QkvError, match="only 2 predicted"):
        tags_of_words(encoding([None, 0, 0, 1, None]), [5, 6], 3, otherwise=0)
