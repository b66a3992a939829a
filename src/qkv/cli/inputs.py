"""What goes into a model: texts of the command line, lines, a column of a table, each perhaps with a text beside it."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Annotated

import typer

from qkv.errors import QkvError

Input = tuple[str, str | None]  # a text, and the one beside it where there is one


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """Where inputs come from."""

    input: Annotated[
        str | None, typer.Option(help="File of inputs, one a line, or a table with --source; - is standard input.")
    ] = None
    source: Annotated[str | None, typer.Option(help="Column of the inputs, where --input is a table.")] = None
    names: Annotated[str, typer.Option(help="Columns of a table without a header line: word,phonemes")] = ""
    format: Annotated[str | None, typer.Option(help="tsv, csv, jsonl or parquet, where no file name tells.")] = None


def read_inputs(texts: list[str], options: InputOptions, beside: Sequence[str] = ()) -> Iterator[Input]:
    """The texts, lines or column to run on. What stands `beside` them is a column of the same table, one text for all
    of them, or one for each."""
    file, column = options.input, options.source
    if texts and file is not None:
        raise QkvError("Inputs are texts or a file: give texts, or --input, not both.")
    if texts and (column or options.names or options.format):
        raise QkvError(
            "Texts are taken as they are: --source, --names and --format belong to a table given with --input."
        )
    if (options.names or options.format) and not column:
        raise QkvError("A table needs the column of the inputs: name it with --source.")
    if not texts and file is None and sys.stdin.isatty():
        raise QkvError("There is no input: give texts, name a file with --input, or pipe lines in.")
    if column is not None:
        return read_columns(file or "-", column, options, beside)
    if texts:
        return with_beside(iter(texts), beside)
    from qkv.data.records import format_of

    if file is not None and format_of(file) is not None:
        raise QkvError(f"{file} is a table: name the column of the inputs with --source.")
    return with_beside(read_lines(file or "-"), beside)


def read_columns(file: str, column: str, options: InputOptions, beside: Sequence[str]) -> Iterator[Input]:
    from qkv.api.pairs import report_problems
    from qkv.cli.spellings import names_of
    from qkv.data.table import read_table

    if len(beside) > 1:
        raise QkvError(f"What stands beside the inputs of a table is one column, not {len(beside)}.")
    if column in beside:
        raise QkvError(f"The column {column!r} cannot stand beside itself: name two different ones.")
    table = read_table(file, [column, *beside], names=names_of(options.names), format=options.format)
    report_problems(table.problems, lambda line: typer.echo(line, err=True))
    seconds = table.column(beside[0]) if beside else [None] * len(table)
    return iter(list(zip(table.column(column), seconds, strict=True)))


def with_beside(texts: Iterator[str], beside: Sequence[str]) -> Iterator[Input]:
    if len(beside) < 2:
        seconds: Iterator[str | None] = cycle([beside[0] if beside else None])
        for text in texts:
            yield text, next(seconds)
        return
    found = list(texts)
    if len(found) != len(beside):
        raise QkvError(
            f"There are {len(found)} inputs and {len(beside)} texts to stand beside them: give one for all, or one for "
            "each."
        )
    yield from zip(found, beside, strict=True)


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


def text_or_file(given: str) -> str:
    """The text of the file of this name, or what was given itself where there is no such file."""
    if not os.path.isfile(given):  # unlike Path.is_file, this takes texts that are too long for a name
        return given
    from qkv.data.records import open_bytes

    with open_bytes(given) as stream:
        try:
            return stream.read().decode("utf-8-sig")
        except UnicodeDecodeError:
            raise QkvError(f"{given} is not valid UTF-8: give text in UTF-8.") from None
