"""What columns may hold, and the reason that is given for what they may not."""

import json
from pathlib import Path

import pytest

from qkv.data.columns import label, number, one_of, optional, text, words
from qkv.data.table import read_table
from qkv.errors import QkvError


@pytest.mark.parametrize(
    ("kind", "value", "good"),
    [
        (text, " a ", " a "), (label, " spam ", "spam"), (label, 3, "3"), (label, True, "True"), (number, "2.5", 2.5),
        (number, 4, 4.0), (words, "a b", ["a", "b"]), (words, ["a b", "c", 3], ["a b", "c", "3"]),
        (optional(number), None, None), (optional(number), "", None), (optional(number), "1", 1.0),
        (one_of(["a", "b"]), "b", "b"),
    ],
)  # fmt: skip
def test_good_values(kind, value, good):
    assert kind(value) == good


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (text, None, "is missing"), (text, 3, "holds 3 (int), not text"), (text, "  ", "is empty"),
        (text, "\ud800", "half of a surrogate"), (label, "", "is empty"), (label, 1.5, "not text"),
        (number, "two", "holds 'two', not a number"), (number, "nan", "not a finite"), (number, True, "not text"),
        (words, [], "is empty"), (words, ["a", None], "is missing"), (one_of(["a", "b"]), "c", "none of a, b"),
    ],
)  # fmt: skip
def test_bad_values(kind, value, reason):
    with pytest.raises(ValueError) as error:
        kind(value)
    assert reason in str(error.value)


def test_a_table_reads_its_columns_by_kind(tmp_path: Path):
    file = tmp_path / "a.jsonl"
    rows = [{"n": 1, "w": ["x"]}, {"n": "?", "w": "y"}, {"w": "y z", "n": 2, "more": "m"}, {"n": 3, "w": "bad"}]
    file.write_text("\n".join(map(json.dumps, rows)))
    table = read_table(
        file,
        ["n", "w", "more"],
        kinds={"n": number, "w": words, "more": optional(text)},
        check=lambda row: "the words are bad" if row["w"] == ["bad"] else "",
    )
    assert table.rows == [{"n": 1.0, "w": ["x"], "more": None}, {"n": 2.0, "w": ["y", "z"], "more": "m"}]
    assert [str(problem).partition(" ")[2] for problem in table.problems] == [
        "line 2: the column 'n' holds '?', not a number",
        "line 4: the words are bad",
    ]
    with pytest.raises(QkvError, match="no column 'x'"):
        read_table(file, ["x"], kinds={"x": number})
