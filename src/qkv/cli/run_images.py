"""`qkv run` with image models: inputs are the names of image files."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.inputs import Input
from qkv.cli.run_reading import in_json, tell_cosines, tell_vectors
from qkv.errors import QkvError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qkv.generate.image_readers import ImageClassifier, ImageEncoder, ImageStateReader, PatchGuesser
    from qkv.generate.image_text import ImageTextReader
    from qkv.generate.readers import Labelled

IMAGES_AT_ONCE = 32


@dataclass(frozen=True, kw_only=True)
class ClassOptions:
    """The classes that pictures are compared with."""

    classes: Annotated[
        str | None, typer.Option(help="Classes told in words, for a model of pictures and texts: cat,dog")
    ] = None
    template: Annotated[
        list[str] | None,
        typer.Option(help="What the words stand in, such as 'a drawing of a {}.'; may be repeated."),
    ] = None


def name_pictures(model: "ImageClassifier", inputs: list[Input], before: int, request: Any) -> Iterator[str]:
    """Label and probability; with --n-best the likeliest labels, each after the number of its picture."""
    files = [file for file, _ in inputs]
    yield from _named(files, model.run(files), before, request)


def _named(files: list[str], labels: "Sequence[Labelled]", before: int, request: Any) -> Iterator[str]:
    best = request.search.n_best
    if best is not None and best < 1:
        raise QkvError(f"An input has 1 label at least, not {best}.")
    for number, (file, found) in enumerate(zip(files, labels, strict=True), start=before + 1):
        if request.as_json:
            yield in_json(input=file, label=found.label, probabilities=found.probabilities)
        elif best is None:
            yield f"{found.label}\t{found.probability:.4f}"
        else:
            ordered = sorted(found.probabilities.items(), key=lambda each: -each[1])
            yield from (f"{number}\t{probability:.4f}\t{label}" for label, probability in ordered[:best])


def embed_pictures(model: "ImageEncoder", inputs: list[Input], before: int, request: Any) -> Iterator[str]:
    """A vector as a JSON list; with --similar the cosines to those pictures, and the file."""
    files, others = [file for file, _ in inputs], request.reading.similar
    if others:
        yield from tell_cosines(files, "file", others, model.similarities(files, others), request)
    else:
        yield from tell_vectors(files, model.run(files), request)


def compare_with_texts(model: "ImageTextReader", inputs: list[Input], before: int, request: Any) -> Iterator[str]:
    """A vector as a JSON list; with --similar the cosines to those texts, with --classes the likeliest of these."""
    files, texts = [file for file, _ in inputs], request.reading.similar
    told = request.classes.classes
    if told is None and (request.classes.template or request.search.n_best is not None):
        raise QkvError("--template and --n-best are about classes: give these with --classes.")
    if told is not None:
        if texts:
            raise QkvError("A picture is named with --classes or compared with --similar: give one of the two.")
        yield from _told(model, files, told, before, request)
        return
    if texts:
        yield from tell_cosines(files, "text", texts, model.similarities(files, texts), request)
    else:
        yield from tell_vectors(files, model.of_pictures(files), request)


def _told(model: "ImageTextReader", files: list[str], told: str, before: int, request: Any) -> Iterator[str]:
    """Classes in words: label and probability, as of a model that was trained for these classes."""
    from qkv.cli.spellings import names_of
    from qkv.generate.zero_shot import TEMPLATES

    found = model.run(files, names_of(told) or [], templates=request.classes.template or TEMPLATES)
    yield from _named(files, found, before, request)


def states_of_pictures(model: "ImageStateReader", inputs: list[Input], before: int, request: Any) -> Iterator[str]:
    """The vectors of all tokens, as a JSON list of lists, written one by one: of an hour of sound they are many."""
    files = [file for file, _ in inputs]
    for file, states in zip(files, model.run(files), strict=True):
        head, tail = in_json(input=file, states=[]).rsplit("[]", 1) if request.as_json else ("", "")
        print(f"{head}[", end="")
        for number, state in enumerate(states):
            print(", " if number else "", json.dumps(state.tolist()), sep="", end="")
        yield f"]{tail}"


def guess_patches(model: "PatchGuesser", inputs: list[Input], before: int, request: Any) -> Iterator[str]:
    """The guessed colour of every patch, as a JSON list of rows."""
    files = [file for file, _ in inputs]
    for file, guess in zip(files, model.run(files), strict=True):
        yield in_json(input=file, colours=guess.tolist()) if request.as_json else json.dumps(guess.tolist())
