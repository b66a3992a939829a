"""`qkv run` with image models: inputs are the names of image files."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from qkv.cli.inputs import Input
from qkv.cli.run_reading import in_json
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.generate.image_readers import ImageClassifier, ImageEncoder, ImageStateReader
    from qkv.generate.image_text import ImageTextReader

IMAGES_AT_ONCE = 32


def name_pictures(model: "ImageClassifier", inputs: list[Input], before: int, request: Any) -> Iterator[str]:
    """Label and probability; with --n-best the likeliest labels, each after the number of its picture."""
    files = [file for file, _ in inputs]
    best = request.search.n_best
    if best is not None and best < 1:
        raise QkvError(f"An input has 1 label at least, not {best}.")
    for number, (file, found) in enumerate(zip(files, model.run(files), strict=True), start=before + 1):
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
        for file, cosines in zip(files, model.similarities(files, others).tolist(), strict=True):
            if request.as_json:
                similar = [{"file": other, "cosine": each} for other, each in zip(others, cosines, strict=True)]
                yield in_json(input=file, similar=similar)
            else:
                yield "\t".join([*(f"{each:.4f}" for each in cosines), file])
        return
    for file, vector in zip(files, model.run(files).tolist(), strict=True):
        yield in_json(input=file, embedding=vector) if request.as_json else json.dumps(vector)


def compare_with_texts(model: "ImageTextReader", inputs: list[Input], before: int, request: Any) -> Iterator[str]:
    """A vector as a JSON list; with --similar the cosines to those texts, and the file."""
    files, texts = [file for file, _ in inputs], request.reading.similar
    if texts:
        for file, cosines in zip(files, model.similarities(files, texts).tolist(), strict=True):
            if request.as_json:
                similar = [{"text": text, "cosine": each} for text, each in zip(texts, cosines, strict=True)]
                yield in_json(input=file, similar=similar)
            else:
                yield "\t".join([*(f"{each:.4f}" for each in cosines), file])
        return
    for file, vector in zip(files, model.of_pictures(files).tolist(), strict=True):
        yield in_json(input=file, embedding=vector) if request.as_json else json.dumps(vector)


def states_of_pictures(model: "ImageStateReader", inputs: list[Input], before: int, request: Any) -> Iterator[str]:
    """The vectors of all tokens, as a JSON list of lists."""
    files = [file for file, _ in inputs]
    for file, states in zip(files, model.run(files), strict=True):
        yield in_json(input=file, states=states.tolist()) if request.as_json else json.dumps(states.tolist())
