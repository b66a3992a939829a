"""Labelled and rated texts: classes in an order that rows cannot change, bad rows with their lines, exact batches."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from qkv.data.batches import Batches
from qkv.data.labelled import ClassRows, ValueRows, class_names, read_labelled, read_rated
from qkv.data.plan import FixedShapes, TokenBudget
from qkv.data.text_rows import TextRows
from qkv.data.token_rows import TokenRows
from qkv.errors import QkvError


def write(folder: Path, name: str, content: str) -> Path:
    (folder / name).write_text(content)
    return folder / name


def some_texts(count: int = 50) -> TextRows:
    rows = [[1, *[10 + i] * (i % 7), 2] for i in range(count)]
    return TextRows(TokenRows.from_lists(rows, 0), None, np.arange(count))


def test_classes_do_not_depend_on_the_order_of_rows(tmp_path: Path):
    data = read_labelled(write(tmp_path, "a.csv", "text,label\ngood,pos\nbad,neg\nfine,pos\n"))
    assert data.names == ("neg", "pos")
    assert data.numbers().tolist() == [1, 0, 1]
    assert data.texts == ["good", "bad", "fine"]
    assert data.seconds is None
    assert class_names(["10", "9", "-1", "9"]) == ("-1", "9", "10")
    with pytest.raises(QkvError, match="two different labels"):
        class_names(["a", "a"])


def test_rows_that_were_left_out_are_told_where_their_labels_are_missed(tmp_path: Path):
    file = tmp_path / "reviews.csv"
    file.write_bytes(b"text,label\n\xff,good\nbad one,bad\n")
    with pytest.raises(
        QkvError, match=r"only one is 'bad'; bad rows were left out \(1\), the first is .*line 2.*UTF-8"
    ):
        read_labelled(file)


def test_pairs_and_numbers_as_labels(tmp_path: Path):
    rows = [{"a": "x", "b": "y", "same": 1}, {"a": "x", "b": "z", "same": 0}, {"a": "x", "same": 0}]
    file = write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)))
    data = read_labelled(file, text="a", second="b", label_column="same")
    assert data.seconds == ["y", "z"]
    assert data.names == ("0", "1")
    assert [problem.line for problem in data.problems] == [3]
    with pytest.raises(QkvError, match="not all different"):
        read_labelled(file, text="a", second="a", label_column="same")


def test_a_label_that_a_model_does_not_know_is_a_bad_row(tmp_path: Path):
    file = write(tmp_path, "a.tsv", "text\tlabel\nx\tpos\ny\tneutral\nz\tneg\n")
    data = read_labelled(file, classes=["pos", "neg"])
    assert data.names == ("pos", "neg")
    assert data.numbers().tolist() == [0, 1]
    assert str(data.problems[0]).endswith("line 3: the column 'label' holds 'neutral', which is none of pos, neg")


def test_rated_pairs(tmp_path: Path):
    file = write(tmp_path, "a.tsv", "a\tb\tscore\nx\ty\t4.5\nx\tz\tmany\n")
    data = read_rated(file, text="a", second="b", value="score")
    assert data.values == [4.5]
    assert "line 3: the column 'score' holds 'many', not a number" in str(data.problems[0])


def test_batches_keep_labels_with_their_texts():
    rows = ClassRows(some_texts(), np.arange(50) % 3)
    seen = 0
    for batch in Batches(rows, TokenBudget(40)):
        assert batch.labelled == len(batch.labels)
        for ids, length, label in zip(batch.ids, batch.lengths, batch.labels, strict=True):
            if length > 2:
                assert int(ids[1] - 10) % 3 == int(label)
                seen += 1
    assert seen == sum(i % 7 > 0 for i in range(50))
    assert batch.segments is None


def test_filler_rows_have_no_label():
    (batch,) = Batches(ClassRows(some_texts(5), np.ones(5, np.int64)), FixedShapes(9 * 8, (8,)))
    assert batch.labels.tolist() == [1] * 5 + [-1] * 3
    assert batch.labelled == 5
    (batch,) = Batches(ValueRows(some_texts(5), np.ones(5, np.float32)), FixedShapes(9 * 8, (8,)))
    assert torch.isnan(batch.values).tolist() == [False] * 5 + [True] * 3
    assert batch.values.dtype == torch.float32
    assert batch.to("meta").values.device.type == "meta"


def test_texts_and_labels_must_match():
    with pytest.raises(QkvError, match="50 texts and 3 labels"):
        ClassRows(some_texts(), np.arange(3))
