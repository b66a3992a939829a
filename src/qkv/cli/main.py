"""The `qkv` command itself: its verbs, and how every error ends as one line and an exit code."""

import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from qkv.cli.certify import certify
from qkv.cli.compare import compare
from qkv.cli.config_file import TYPED
from qkv.cli.consolidate import consolidate
from qkv.cli.cost import cost
from qkv.cli.export import convert, export
from qkv.cli.layers import layers
from qkv.cli.look import look
from qkv.cli.models import models
from qkv.cli.run import run
from qkv.cli.runs import runs
from qkv.cli.tokenize import tokenize
from qkv.cli.train import train
from qkv.cli.train_ranks import hush, rank
from qkv.errors import QkvError, QkvWarning

app = typer.Typer(
    name="qkv",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: what it shows can be copied
    pretty_exceptions_enable=False,
)
app.add_typer(train, name="train", short_help="Train a model on your own data.")
app.command("tokenize", short_help="Cut a corpus larger than memory into tokens, before it is trained on.")(tokenize)
app.command("run", short_help="Give a model its input, get its output.")(run)
app.command("look", short_help="Draw where a model looks while it writes.")(look)
app.command("layers", short_help="Draw what each layer of a training run did.")(layers)
app.command("runs", short_help="List, compare and draw what was trained.")(runs)
app.command("consolidate", short_help="Make a checkpoint the model of its run.")(consolidate)
app.command("compare", short_help="Train variants within one budget and draw them side by side.")(compare)
app.command("cost", short_help="Tell what a training will take before it is started.")(cost)
app.command("export", short_help="Write a model as the reference library opens it.")(export)
app.command("convert", short_help="Rewrite old or other model files as a published folder.")(convert)
app.command("certify", short_help="Compare a model with the reference library.")(certify)
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


# What BadParameter is a kind of, as is every error of typing a command; typer gives it no name of its own.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]
SHOW = warnings.showwarning
NO_MEMORY = ("allocate memory", "out of memory")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 2 for what a person can mend, 130 after Ctrl-C and 143 after SIGTERM.

    `certify` has a code of its own: 1 where answers differ.
    """
    hush()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = tell
            TYPED.set(["qkv", *(sys.argv[1:] if arguments is None else arguments)])
            code = app(arguments, prog_name="qkv", standalone_mode=False)  # the code of a typer.Exit, else None
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except UsageError as error:
        return complain_of_usage(error)
    except QkvError as error:
        return complain(str(error))
    except OSError as error:  # what no room foresaw: standard output on a full disk
        return complain(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}.")
    except (MemoryError, RuntimeError) as error:  # torch has no type of its own for memory that is not on a GPU
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in NO_MEMORY):
            raise
        return complain("There is not enough memory for this: take a smaller model, shorter texts or smaller batches.")
    return code or 0


def tell(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """What is hardly meant, on one line; warnings of others as they are."""
    if issubclass(category, QkvWarning):
        print("qkv:", message, file=sys.stderr)
    else:
        SHOW(message, category, filename, lineno, file, line)


def complain_of_usage(error: Any) -> int:
    """One line that ends with where to look; a command that was given nothing shows its whole help."""
    message = error.format_message()
    if message.startswith("Usage:"):
        print(message, file=sys.stderr)
        return 2
    command = error.ctx.command_path if error.ctx is not None else "qkv"
    return complain(f"{message}{'' if message.endswith(('.', '?')) else '.'} See {command} --help.")


def complain(message: str) -> int:
    who = f"qkv, rank {rank()}:" if rank() else "qkv:"
    print(who, printable(" ".join(message.split())), file=sys.stderr)
    return 2


def printable(text: str) -> str:
    """What a file says may steer a terminal, so signs that do not show are spelled."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
