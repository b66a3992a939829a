"""Questions about a text whose answer is a stretch of it, or is not there at all: reading them. [rajpurkar2018]"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv.data.columns import SHOWN, number, optional, text
from qkv.data.records import open_bytes
from qkv.data.table import Problem, Row, read_table
from qkv.errors import QkvError


@dataclass(frozen=True)
class Answer:
    """A stretch of a context."""

    text: str
    start: int  # its first character


@dataclass(frozen=True)
class Question:
    """A question about a context; without answers it cannot be answered from there."""

    question: str
    context: str
    answers: tuple[Answer, ...] = ()


@dataclass(frozen=True)
class Questions:
    questions: list[Question]
    problems: list[Problem] = field(default_factory=list)


def read_questions(
    path: str | Path,
    *,
    question: str = "question",
    context: str = "context",
    answer: str = "answer",
    start: str = "answer_start",
    answers: str = "answers",
    names: Sequence[str] | None = None,
    format: str | None = None,
) -> Questions:
    """The questions of a SQuAD file (`.json`), or of a table with a question and a context in each row.

    A table has the answer as text, with its first character where the same words occur more than once; or, as the
    published data sets have it, `{"text": [...], "answer_start": [...]}` in the column `answers`. A row may have none.
    An answer that does not stand in its context makes a bad row.
    """
    if format is None and Path(path).suffix.lower() == ".json":
        return _read_squad(str(path))
    kinds = {answer: optional(text), start: optional(number), answers: optional(_answers)}

    def given(row: Row) -> list[Answer]:
        if row[answers] is not None:
            return list(row[answers])
        return [] if row[answer] is None else [placed(row[answer], row[start], row[context])]

    def check(row: Row) -> str:
        try:
            return next((reason for each in given(row) if (reason := misplaced(each, row[context]))), "")
        except ValueError as error:
            return str(error)

    columns = [question, context, answer, start, answers]
    table = read_table(path, columns, kinds=kinds, check=check, names=names, format=format)
    found = [Question(row[question], row[context], tuple(given(row))) for row in table.rows]
    if not any(each.answers for each in found):
        raise QkvError(
            f"None of the {len(found)} questions in {path} has an answer in the columns {answer!r} or {answers!r}: "
            "name the column that holds them."
        )
    return Questions(found, table.problems)


def placed(answer: str, start: float | None, context: str) -> Answer:
    """An answer at its place, which is found where it is not given."""
    if start is not None:
        return Answer(answer, int(start))
    place = context.find(answer)
    if place < 0:
        raise ValueError(f"the answer {answer[:SHOWN]!r} does not stand in the context")
    return Answer(answer, place)


def misplaced(answer: Answer, context: str) -> str:
    """Why an answer is not where it should be, or an empty string."""
    if not answer.text.strip():
        return "an answer is empty"
    if answer.start < 0 or context[answer.start : answer.start + len(answer.text)] != answer.text:
        return f"the answer {answer.text[:SHOWN]!r} does not stand at character {answer.start} of the context"
    return ""


def _answers(value: Any) -> list[Answer]:
    """The answers of a published row: two lists side by side, or a list of objects."""
    if isinstance(value, dict) and isinstance(value.get("text"), list) and isinstance(value.get("answer_start"), list):
        if len(value["text"]) != len(value["answer_start"]):
            raise ValueError("has another number of answers than of their places")
        value = [
            {"text": said, "answer_start": at}
            for said, at in zip(*map(value.get, ("text", "answer_start")), strict=True)
        ]
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise ValueError('should hold {"text": [...], "answer_start": [...]}')
    found = []
    for each in value:
        said, at = each.get("text"), each.get("answer_start")
        if not isinstance(said, str) or not isinstance(at, int):
            raise ValueError("has an answer without text or without the number of its first character")
        found.append(Answer(said, at))
    return found


def _read_squad(file: str) -> Questions:
    """`{"data": [{"paragraphs": [{"context": ..., "qas": [{"question": ..., "answers": [...]}]}]}]}`"""
    with open_bytes(file) as stream:
        content = stream.read()
    try:
        items = list(_squad_items(json.loads(content.decode("utf-8-sig"))))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise QkvError(
            f"{file} does not hold questions as SQuAD does, data > paragraphs > qas ({error}): give such a file, or a "
            "table."
        ) from error
    found = Questions([])
    for place, (question, context, answers) in enumerate(items, start=1):
        try:
            asked = Question(text(question), text(context), tuple(_answers(answers)))
            reason = next((why for each in asked.answers if (why := misplaced(each, asked.context))), "")
        except ValueError as error:
            reason = f"the question, the context or the answers: one {error}"
        if reason:
            found.problems.append(Problem(file, place, reason))
        else:
            found.questions.append(asked)
    if not found.questions:
        first = f"; the first problem is {found.problems[0]}" if found.problems else ""
        raise QkvError(f"There is no question in {file} that can be used{first}.")
    return found


def _squad_items(content: Any) -> Iterator[tuple[Any, Any, Any]]:
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for item in paragraph["qas"]:
                yield item["question"], paragraph["context"], [] if item.get("is_impossible") else item["answers"]
