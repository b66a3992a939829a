"""From texts to figures, with a real tokenizer and a small model: what a model learns, the figures show."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qkv.data.answers import SpanRows
from qkv.data.batches import Batches
from qkv.data.bert_tokenizer import bert_parts
from qkv.data.encoding import Limit
from qkv.data.plan import TokenBudget
from qkv.data.questions import Answer, Question
from qkv.data.tagged import TagRows
from qkv.data.text_rows import TextRows
from qkv.data.tokenizer import TextTokenizer
from qkv.models.bert import BertSizes
from qkv.models.catalogue import build
from qkv.models.head_choice import HeadChoice
from qkv.models.text_model import TextModel
from qkv.train.objectives.labels import SpanLoss, TagLoss
from qkv.train.task_scores import AnswerScores, TagScores, said_about

WORDS = ["red", "green", "blue", "one", "two", "three", "cat", "dog", "bird"]
NAMES = {"red": "B-COL", "green": "B-COL", "blue": "B-COL", "cat": "B-PET", "dog": "B-PET", "bird": "B-PET"}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS[1:], "r", "##ed"]  # one word in two pieces
TOKENIZER = TextTokenizer(bert_parts({piece: number for number, piece in enumerate(PIECES)}, {}))


def some_words(count: int, seed: int = 0) -> list[list[str]]:
    generator = np.random.default_rng(seed)
    return [generator.choice(WORDS, generator.integers(2, 7)).tolist() for _ in range(count)]


def model_for(head: HeadChoice) -> TextModel:
    torch.manual_seed(0)
    sizes = BertSizes(
        vocabulary=TOKENIZER.size, positions=40, width=32, hidden=64, heads=4, layers=2, dropout=0.0,
        attention_dropout=0.0,
    )  # fmt: skip
    model: TextModel = build("bert", sizes, head)
    return model


def learn(model: nn.Module, objective: Callable[..., Any], rows: Any, steps: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    batches = Batches(rows, TokenBudget(512), prefetch=0)

    def endless() -> Iterator[Any]:
        while True:
            yield from batches

    model.train()
    for _, batch in zip(range(steps), endless(), strict=False):
        loss = objective(model, batch)
        (loss.total / loss.count).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def texts_of(words: list[list[str]]) -> TextRows:
    encodings = TOKENIZER.encodings([" ".join(each) for each in words])
    return TextRows.from_encodings(encodings, pad=TOKENIZER.pad).without_segments()


def test_answers_come_back_in_the_order_of_the_rows() -> None:
    rows = texts_of(some_words(50))
    model = model_for(HeadChoice("states"))
    lengths = said_about(rows, lambda batch: batch.lengths.tolist(), model)
    assert lengths == rows.tokens.lengths.tolist()


def test_tags_also_through_windows() -> None:
    words = some_words(150)
    tags = [[NAMES.get(word, "O") for word in each] for each in words]
    names = ("B-COL", "B-PET", "O")
    numbers = [[names.index(tag) for tag in each] for each in tags]
    model = model_for(HeadChoice("tokens", names))
    whole = TOKENIZER.encode_words(words)
    learn(model, TagLoss(), TagRows.from_encodings(whole, numbers, pad=TOKENIZER.pad), 60)
    windows = TOKENIZER.encode_words(words, limit=Limit(5, stride=0))
    assert len(windows) > len(whole)
    for encodings in (whole, windows):
        rows = TagRows.from_encodings(encodings, numbers, pad=TOKENIZER.pad)
        figures = TagScores(rows, encodings, tags, names)(model)
        assert figures["f1"] > 0.9
        assert figures["accuracy"] > 0.9
    cut = TOKENIZER.encode_words(words, limit=Limit(4))
    scores = TagScores(TagRows.from_encodings(cut, numbers, pad=TOKENIZER.pad), cut, tags, names)
    assert [len(each) for each in scores.tags(model)] == [len(each) for each in tags]


def test_answers_through_windows_and_none() -> None:
    """The question names a pet: the answer is the word before it, and there is none where the pet is not there."""
    generator = np.random.default_rng(0)
    questions = []
    for _ in range(300):
        words = generator.choice(["red", "green", "blue", "one", "two"], 6).tolist()
        pet, there = str(generator.choice(["cat", "dog"])), generator.random() < 0.7
        place = int(generator.integers(1, 6))
        words[place] = pet if there else words[place]
        start = len(" ".join(words[: place - 1])) + (place > 1)
        answers = (Answer(words[place - 1], start),) if there else ()
        questions.append(Question(pet, " ".join(words), answers))
    encodings = TOKENIZER.encode_pairs(
        [each.question for each in questions],
        [each.context for each in questions],
        limit=Limit(9, "second", stride=3),
    )
    assert len(encodings) > len(questions)
    rows = SpanRows.from_encodings(encodings, questions, pad=TOKENIZER.pad)
    assert len(np.unique(rows.original)) == len(questions)
    model = model_for(HeadChoice("spans"))
    learn(model, SpanLoss(), rows, 150)
    figures = AnswerScores(rows, encodings, questions)(model)
    assert figures["exact_match"] > 0.9
    assert figures["f1"] >= figures["exact_match"]
    without = AnswerScores(rows, encodings, questions, threshold=-1e9)(model)
    unanswerable = sum(not each.answers for each in questions) / len(questions)
    assert without["exact_match"] == pytest.approx(unanswerable)
