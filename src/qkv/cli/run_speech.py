"""`qkv run` with a model that writes down speech: inputs are the names of sound files."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.inputs import Input
from qkv.cli.run_reading import in_json

if TYPE_CHECKING:
    from qkv.generate.listen import Listener
    from qkv.generate.spoken_words import Word
    from qkv.generate.transcribe import Segment, Transcriber

SOUNDS_AT_ONCE = 8


@dataclass(frozen=True, kw_only=True)
class SpeechOptions:
    """How speech is written down."""

    language: Annotated[str | None, typer.Option(help="Spoken language, such as de; else the one that is heard.")] = (
        None
    )
    translate: Annotated[bool, typer.Option("--translate", help="Write in English what is said in any language.")] = (
        False
    )
    times: Annotated[
        str | None, typer.Option(help="Lines with start and end in seconds: of segments, or of words.", metavar="WHAT")
    ] = None
    hints: Annotated[
        str | None, typer.Option(help="A text to begin with, such as names that will be said.", metavar="TEXT")
    ] = None


def write_down(model: "Transcriber", inputs: list[Input], before: int, request: Any) -> Iterator[str]:
    """The text of each sound; with --times a line for each segment or word: number of the sound, start, end, text."""
    from qkv.errors import QkvError
    from qkv.generate.hearing import Hearing

    options: SpeechOptions = request.speech
    if options.times not in (None, "segments", "words"):
        raise QkvError(f"Times are those of segments or of words, not of {options.times}.")
    hearing = Hearing(
        language=options.language,
        task="translate" if options.translate else "transcribe",
        words=options.times == "words" or request.as_json,
        beams=request.search.beams or 1,
        prompt=options.hints or "",
    )
    files = [file for file, _ in inputs]
    for number, (file, found) in enumerate(zip(files, model.run(files, hearing), strict=True), start=before + 1):
        if request.as_json:
            segments = [{**timed(each), "words": [timed(word) for word in each.words]} for each in found.segments]
            yield in_json(input=file, text=found.text, language=found.language, segments=segments)
        elif options.times is None:
            yield found.text
        else:
            for each in found.words if options.times == "words" else found.segments:
                yield f"{number}\t{each.start:.2f}\t{each.end:.2f}\t{each.text}"


def write_letters(model: "Listener", inputs: list[Input], before: int, request: Any) -> Iterator[str]:
    """The same with a model that writes letter by letter, and knows words but no segments."""
    from qkv.errors import QkvError
    from qkv.generate.ctc import Beam

    if request.speech.times not in (None, "words"):
        raise QkvError(f"This model tells the times of words, not of {request.speech.times}.")
    beams = request.search.beams
    beam = None if beams in (None, 1) else Beam(width=beams)
    files = [file for file, _ in inputs]
    for number, (file, found) in enumerate(zip(files, model.run(files, beam), strict=True), start=before + 1):
        if request.as_json:
            yield in_json(input=file, text=found.text, words=[timed(word) for word in found.words])
        elif request.speech.times is None:
            yield found.text
        else:
            yield from (f"{number}\t{word.start:.2f}\t{word.end:.2f}\t{word.text}" for word in found.words)


def timed(part: "Segment | Word") -> dict[str, Any]:
    """In JSON: times to the millisecond."""
    return {"start": round(part.start, 3), "end": round(part.end, 3), "text": part.text}
