"""Questions out of tables and SQuAD files; answers that are not where they should be are bad rows."""

import json
from pathlib import Path

import pytest

from qkv.data.questions import Answer, Question, read_questions
from qkv.errors import QkvError

CONTEXT = "The cat sat. The cat ran."


def test_a_table_with_one_answer_a_row(tmp_path: Path):
    file = tmp_path / "a.csv"
    file.write_text(
        "question,context,answer,answer_start\n"
        f"Who?,{CONTEXT},cat,17\nWho?,{CONTEXT},cat,\nWhy?,{CONTEXT},,\n"
        f"Who?,{CONTEXT},dog,\nWho?,{CONTEXT},cat,5\nWho?,{CONTEXT},cat,-1\n"
    )
    data = read_questions(file)
    assert data.questions == [
        Question("Who?", CONTEXT, (Answer("cat", 17),)),
        Question("Who?", CONTEXT, (Answer("cat", 4),)),
        Question("Why?", CONTEXT),
    ]
    assert [problem.line for problem in data.problems] == [5, 6, 7]
    assert "the answer 'dog' does not stand in the context" in str(data.problems[0])
    assert "does not stand at character 5" in str(data.problems[1])


def test_a_table_as_published(tmp_path: Path):
    file = tmp_path / "a.jsonl"
    rows = [
        {"question": "Who?", "context": CONTEXT, "answers": {"text": ["cat", "The cat"], "answer_start": [4, 0]}},
        {"question": "Why?", "context": CONTEXT, "answers": {"text": [], "answer_start": []}},
        {"question": "Who?", "context": CONTEXT, "answers": {"text": ["cat"], "answer_start": []}},
        {"question": "Who?", "context": CONTEXT, "answers": "cat"},
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    data = read_questions(file)
    assert [len(each.answers) for each in data.questions] == [2, 0]
    assert [problem.line for problem in data.problems] == [3, 4]


def test_a_squad_file(tmp_path: Path):
    file = tmp_path / "dev.json"
    asked = [
        {"question": "Who?", "id": "1", "answers": [{"text": "cat", "answer_start": 4}], "is_impossible": False},
        {"question": "Why?", "id": "2", "answers": [], "is_impossible": True},
        {"question": "Who?", "id": "3", "answers": [{"text": "cat", "answer_start": 9}]},
        {"question": None, "id": "4", "answers": []},
    ]
    file.write_text(json.dumps({"version": "2", "data": [{"paragraphs": [{"context": CONTEXT, "qas": asked}]}]}))
    data = read_questions(file)
    assert data.questions == [Question("Who?", CONTEXT, (Answer("cat", 4),)), Question("Why?", CONTEXT)]
    assert [problem.line for problem in data.problems] == [3, 4]


@pytest.mark.parametrize("content", ["[]", "{", '{"data": [{"x": 1}]}', '{"data": 3}'])
def test_another_json_file_is_refused(tmp_path: Path, content: str):
    file = tmp_path / "dev.json"
    file.write_text(content)
    with pytest.raises(QkvError, match="as SQuAD does"):
        read_questions(file)


def test_a_squad_file_without_questions_is_refused(tmp_path: Path):
    file = tmp_path / "dev.json"
    file.write_text('{"data": []}')
    with pytest.raises(QkvError, match="no question in"):
        read_questions(file)


def test_a_table_whose_answers_stand_in_another_column_is_refused(tmp_path: Path):
    file = tmp_path / "a.csv"
    file.write_text(f"question,context,reply\nWho?,{CONTEXT},cat\n")
    with pytest.raises(QkvError, match=r"None of the 1 questions .* name the column"):
        read_questions(file)
    assert read_questions(file, answer="reply").questions[0].answers == (Answer("cat", 4),)
