"""`qkv run` with a model that turns one text into another."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.groups import flag, given
from qkv.cli.inputs import Input
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.generate.text import Result, TextToText

BEAMS, PENALTY = 4, 0.6
SEARCHING = ("beams", "n_best", "length_penalty")
# What a translator can be asked for by the names that a language model has.
DRAWING = ("temperature", "top_k", "top_p", "min_p", "typical", "samples", "seed")
SHAPING = ("repetition_penalty", "frequency_penalty", "presence_penalty", "no_repeat")
TRANSLATING = (*SEARCHING, "prefix", *DRAWING, *SHAPING, "max_tokens")


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How outputs are searched for."""

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
    prefix: Annotated[
        str | None, typer.Option(help="Put before every text, to name a translator's task as T5 does: 'summarize: '")
    ] = None


def translate(model: "TextToText", inputs: list[Input], before: int, request: Any) -> Iterator[str]:
    texts = [text for text, _ in inputs]
    several = (request.search.n_best or request.writing.samples or 1) > 1
    for number, (text, outputs) in enumerate(zip(texts, written(model, texts, request), strict=True), before + 1):
        if request.as_json:
            # Output and score, and whether the output came to an end of its own before the length limit.
            found = [{"text": each.text, "score": each.score, "ended": each.hypothesis.ended} for each in outputs]
            yield json.dumps({"input": text, "outputs": found}, ensure_ascii=False)
            continue
        for output in outputs:
            yield f"{number}\t{output.score:.4f}\t{in_line(output.text)}" if several else in_line(output.text)


def written(model: "TextToText", texts: list[str], request: Any) -> "list[list[Result]]":
    """The outputs for each text, searched for or drawn."""
    from qkv.cli.run_language import shapers_of
    from qkv.generate.decode import PAPER_LIMIT, LengthLimit

    search, asked = request.search, request.writing
    chosen = given(search, asked)
    ways = [[name for name in names if name in chosen] for names in (SEARCHING, DRAWING)]
    if all(ways):
        raise QkvError(f"{flag(ways[0][0])} and {flag(ways[1][0])} are two ways of writing: give one of the two.")
    texts = [(search.prefix or "") + text if text.strip() else text for text in texts]
    limit = PAPER_LIMIT if asked.max_tokens is None else LengthLimit(0.0, asked.max_tokens)
    shapers = tuple(shapers_of(asked))
    if ways[1]:
        samples = 1 if asked.samples is None else asked.samples
        return model.sample(texts, samples=samples, seed=asked.seed, shapers=shapers, limit=limit)
    return model.run_best(
        texts,
        best=1 if search.n_best is None else search.n_best,
        beams=search.beams or BEAMS,
        length_penalty=PENALTY if search.length_penalty is None else search.length_penalty,
        shapers=shapers,
        limit=limit,
    )


def in_line(text: str) -> str:
    """An output is one line, whatever is in it."""
    return " ".join(text.splitlines())
