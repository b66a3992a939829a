"""`qkv run` with a model that turns one text into another."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.inputs import Input

if TYPE_CHECKING:
    from qkv.generate.text import TextToText

BEAMS, PENALTY = 4, 0.6


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    beams: Annotated[
        int | None,
        typer.Option(min=1, help="Beams to search with; 4 for a translator, none for a language model."),
    ] = None
    n_best: Annotated[
        int | None, typer.Option(help="Outputs for each input, best first; at most as many as beams.")
    ] = None
    length_penalty: Annotated[
        float | None, typer.Option(help="Of beams: above 0 favours longer outputs; 0.6 for a translator, else 1.")
    ] = None


def translate(model: "TextToText", inputs: list[Input], before: int, request: Any) -> Iterator[str]:
    search: SearchOptions = request.search
    texts = [text for text, _ in inputs]
    best = 1 if search.n_best is None else search.n_best
    results = model.run_best(
        texts,
        best=best,
        beams=search.beams or BEAMS,
        length_penalty=PENALTY if search.length_penalty is None else search.length_penalty,
    )
    for number, (text, outputs) in enumerate(zip(texts, results, strict=True), start=before + 1):
        if request.as_json:
            # Output and score, and whether the output came to an end of its own before the length limit.
            found = [{"text": each.text, "score": each.score, "ended": each.hypothesis.ended} for each in outputs]
            yield json.dumps({"input": text, "outputs": found}, ensure_ascii=False)
            continue
        for output in outputs:
            yield in_line(output.text) if best == 1 else f"{number}\t{output.score:.4f}\t{in_line(output.text)}"


def in_line(text: str) -> str:
    """An output is one line, whatever is in it."""
    return " ".join(text.splitlines())
