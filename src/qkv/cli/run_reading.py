"""`qkv run` with models that read: labels, tags, answers, hidden words, vectors."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.inputs import Input
from qkv.cli.run_translator import in_line
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.generate.readers import Answerer, Classifier, MaskFiller, Rater, SentenceEncoder, StateReader, Tagger

FILLINGS = 5


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """What stands beside a text, and what is told of it."""

    second: Annotated[
        list[str] | None,
        typer.Option(help="For pairs: the second text, one for all or one for each; a table's column."),
    ] = None
    context: Annotated[
        list[str] | None,
        typer.Option(help="For questions: where the answer stands, a text, a file or a table's column; like --second."),
    ] = None
    threshold: Annotated[
        float | None, typer.Option(help="For questions: answer unless none is better by more than this; 0 by default.")
    ] = None
    similar: Annotated[
        list[str] | None, typer.Option(help="For embeddings: tell how like this text the inputs are; may be repeated.")
    ] = None
    split: Annotated[
        str | None, typer.Option(help="How texts are cut, where a vocabulary needs it and its files are silent: smiles")
    ] = None


def in_json(**values: Any) -> str:
    return json.dumps(values, ensure_ascii=False)


def classify(model: "Classifier", inputs: list[Input], before: int, request: Any) -> Iterator[str]:
    """Label and probability; as JSON the probabilities of all labels."""
    texts, seconds = [text for text, _ in inputs], [second for _, second in inputs if second is not None]
    for (text, second), found in zip(inputs, model.run(texts, seconds or None), strict=True):
        if request.as_json:
            pair = {} if second is None else {"second": second}
            yield in_json(input=text, **pair, label=found.label, probabilities=found.probabilities)
        else:
            yield f"{found.label}\t{found.probability:.4f}"


def rate(model: "Rater", inputs: list[Input], before: int, request: Any) -> Iterator[str]:
    """The number of each text or pair."""
    texts, seconds = [text for text, _ in inputs], [second for _, second in inputs if second is not None]
    for (text, second), value in zip(inputs, model.run(texts, seconds or None), strict=True):
        pair = {} if second is None else {"second": second}
        yield in_json(input=text, **pair, value=value) if request.as_json else f"{value:.4f}"


def tag(model: "Tagger", inputs: list[Input], before: int, request: Any) -> Iterator[str]:
    """word/tag word/tag …"""
    texts = [text for text, _ in inputs]
    for text, words in zip(texts, model.run(texts), strict=True):
        if request.as_json:
            tagged = [
                {"word": one.word, "tag": one.label, "probability": one.probability, "start": one.start, "end": one.end}
                for one in words
            ]
            yield in_json(input=text, words=tagged)
        else:
            yield " ".join(f"{one.word}/{one.label}" for one in words)


def answer(model: "Answerer", inputs: list[Input], before: int, request: Any) -> Iterator[str]:
    """The stretch of the context; a blank line where there is no answer."""
    if any(context is None for _, context in inputs):
        raise QkvError("A question is answered from a text: give it with --context.")
    questions, contexts = [text for text, _ in inputs], [str(context) for _, context in inputs]
    threshold = request.reading.threshold or 0.0
    for question, found in zip(questions, model.run(questions, contexts, threshold=threshold), strict=True):
        if request.as_json:
            yield in_json(
                input=question, answer=found.text, best=found.best, score=found.score, none_is_better_by=found.none
            )
        else:
            yield in_line(found.text)


def fill(model: "MaskFiller", inputs: list[Input], before: int, request: Any) -> Iterator[str]:
    """Number of the input, probability, token and the text with it, the likeliest first."""
    texts = [text for text, _ in inputs]
    best = FILLINGS if request.search.n_best is None else request.search.n_best
    if best < 1:
        raise QkvError(f"A hidden place has 1 filling at least, not {best}.")
    for number, (text, found) in enumerate(zip(texts, model.run(texts, best=best), strict=True), start=before + 1):
        if request.as_json:
            fillings = [{"token": one.token, "probability": one.probability, "text": one.text} for one in found]
            yield in_json(input=text, fillings=fillings)
        else:
            for one in found:
                yield f"{number}\t{one.probability:.4f}\t{one.token}\t{in_line(one.text)}"


def embed(model: "SentenceEncoder", inputs: list[Input], before: int, request: Any) -> Iterator[str]:
    """A vector as a JSON list; with --similar the cosines to those texts, and the input."""
    texts, others = [text for text, _ in inputs], request.reading.similar
    if others:
        yield from tell_cosines(texts, "text", others, model.similarities(texts, others), request)
    else:
        yield from tell_vectors(texts, model.run(texts), request)


def tell_cosines(given: list[str], kind: str, others: list[str], cosines: Any, request: Any) -> Iterator[str]:
    """How like each of the others, which are of a kind, what was given is; cosines [given others]."""
    for one, row in zip(given, cosines.tolist(), strict=True):
        if request.as_json:
            similar = [{kind: other, "cosine": each} for other, each in zip(others, row, strict=True)]
            yield in_json(input=one, similar=similar)
        else:
            yield "\t".join([*(f"{each:.4f}" for each in row), in_line(one)])


def tell_vectors(given: list[str], vectors: Any, request: Any) -> Iterator[str]:
    """A line for each of the vectors [given d]."""
    for one, vector in zip(given, vectors.tolist(), strict=True):
        yield in_json(input=one, embedding=vector) if request.as_json else json.dumps(vector)


def read_states(model: "StateReader", inputs: list[Input], before: int, request: Any) -> Iterator[str]:
    """The vectors of all tokens, special ones included, as a JSON list of lists."""
    texts = [text for text, _ in inputs]
    for text, states in zip(texts, model.run(texts), strict=True):
        yield in_json(input=text, states=states.tolist()) if request.as_json else json.dumps(states.tolist())
