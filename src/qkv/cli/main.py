"""The `qkv` command itself: its verbs, and how every error ends as one line and an exit code."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from qkv.cli.look import look
from qkv.cli.models import models
from qkv.cli.run import run
from qkv.cli.train import train
from qkv.errors import QkvError

app = typer.Typer(
    name="qkv",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: what it shows can be copied
    pretty_exceptions_enable=False,
)
app.add_typer(train, name="train", short_help="Train a model on your own data.")
app.command("run", short_help="Give a model its input, get its output.")(run)
app.command("look", short_help="Draw where a model looks while it writes.")(look)
app.command("models", short_help="List families, sizes and parameter counts.")(models)


def print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"qkv {version('qkv')}")
        raise typer.Exit


@app.callback()
def every_verb(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    """Every transformer, from one set of parts: train one on your own data, run it, look into it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 2 for what a person can mend, 130 after Ctrl-C and 143 after SIGTERM."""
    try:
        app(arguments, prog_name="qkv")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except QkvError as error:
        return complain(str(error))
    except OSError as error:  # what no room foresaw: standard output on a full disk
        return complain(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}.")
    return 0


def complain(message: str) -> int:
    print("qkv:", " ".join(message.split()), file=sys.stderr)
    return 2
