"""`qkv run`: texts in, texts out."""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.generate.text import Result

AT_ONCE = 512  # texts that are decoded together before anything is written


def run(
    model: Annotated[Path, typer.Argument(help="Model folder, such as `qkv train` leaves.")],
    texts: Annotated[list[str] | None, typer.Argument(help="Texts, each an input of its own.", metavar="TEXT")] = None,
    input: Annotated[
        str | None, typer.Option(help="File of inputs, one a line, or a table with --source; - is standard input.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Column of the inputs, where --input is a table.")] = None,
    names: Annotated[str, typer.Option(help="Columns of a table without a header line: word,phonemes")] = "",
    format: Annotated[str | None, typer.Option(help="tsv, csv, jsonl or parquet, where no file name tells.")] = None,
    beams: Annotated[
        int, typer.Option(min=1, help="Beams to search with; 1 takes the likeliest token at each step.")
    ] = 4,
    n_best: Annotated[int, typer.Option(help="Outputs for each input, best first; at most as many as beams.")] = 1,
    length_penalty: Annotated[float, typer.Option(help="Above 0 favours longer outputs.")] = 0.6,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, with scores.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Give a model its input, get its output: one line for each, in the same order.

    Inputs are the texts given, the lines of a file, a column of a table, or the lines of standard input. A blank input
    has a blank output. With --n-best above 1 a line is the number of its input, the score and the output, with tabs
    between them.

    \b
    Example (after the one that `qkv train text-to-text --help` shows):
      qkv run runs/words cat dog
      echo tag | qkv run runs/words --beams 4 --n-best 2
    """
    from qkv.api.loading import load

    inputs = read_inputs(texts or [], input, source, names, format)
    text_to_text = load(model, device)
    number = 0
    while chunk := list(islice(inputs, AT_ONCE)):
        results = text_to_text.run_best(chunk, best=n_best, beams=beams, length_penalty=length_penalty)
        for text, outputs in zip(chunk, results, strict=True):
            number += 1
            for line in in_json(text, outputs) if as_json else in_lines(number, outputs, n_best):
                print(line)
        sys.stdout.flush()
    if not number:
        raise QkvError(f"There is no input: {'standard input' if input in (None, '-') else input} is empty.")


def read_inputs(
    texts: list[str], file: str | None, column: str | None, names: str, format: str | None
) -> Iterator[str]:
    """The texts given, or the lines or rows of a file; only one of the two."""
    if texts and file is not None:
        raise QkvError("Give texts or --input, not both.")
    if texts and (column or names or format):
        raise QkvError(
            "Texts are taken as they are: --source, --names and --format belong to a table given with --input."
        )
    if (names or format) and not column:
        raise QkvError("A table needs the column of the inputs: name it with --source.")
    if texts:
        return iter(texts)
    if file is None and sys.stdin.isatty():
        raise QkvError("There is no input: give texts, name a file with --input, or pipe lines in.")
    from qkv.data.records import format_of

    if column is not None:
        from qkv.api.pairs import report_problems
        from qkv.cli.spellings import names_of
        from qkv.data.table import read_table

        table = read_table(file or "-", [column], names=names_of(names), format=format)
        report_problems(table.problems, lambda line: typer.echo(line, err=True))
        return iter(table.column(column))
    if file is not None and format_of(file) is not None:
        raise QkvError(f"{file} is a table: name the column of the inputs with --source.")
    return read_lines(file or "-")


def read_lines(file: str) -> Iterator[str]:
    """The lines of a text file, read as they are needed."""
    from qkv.data.records import STANDARD_INPUT, open_bytes

    shown = "standard input" if file == STANDARD_INPUT else file
    with open_bytes(file) as stream:
        for number, line in enumerate(stream, start=1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError:
                raise QkvError(f"Line {number} of {shown} is not valid UTF-8: give text in UTF-8.") from None


def in_lines(number: int, outputs: list["Result"], n_best: int) -> Iterator[str]:
    """An output is one line, whatever is in it."""
    for output in outputs:
        text = " ".join(output.text.splitlines())
        yield text if n_best == 1 else f"{number}\t{output.score:.4f}\t{text}"


def in_json(text: str, outputs: list["Result"]) -> Iterator[str]:
    """Output and score, and whether the output came to an end of its own before the length limit."""
    found = [{"text": each.text, "score": each.score, "ended": each.hypothesis.ended} for each in outputs]
    yield json.dumps({"input": text, "outputs": found}, ensure_ascii=False)
