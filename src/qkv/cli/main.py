"""The `qkv` command itself: its verbs, and how every error ends as one line and an exit code."""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer

from qkv.cli.plain import PlainCommand
from qkv.cli.process import ALONE, TYPED, address_space, check_address_space, ending, share_cores
from qkv.cli.streams import ready_streams
from qkv.cli.train_ranks import hush, rank
from qkv.cli.triton_apart import keep_triton_apart
from qkv.data.safe_path import for_good
from qkv.errors import QkvError, QkvWarning, legible


class Verb(NamedTuple):
    """One command: its summary, and the file it is in, where it has its name."""

    summary: str
    file: str
    saves: bool = False  # its result is in a folder; of others it is what they print


VERBS = {
    "train": Verb("Train a model on your own data.", "train", saves=True),
    "tokenize": Verb("Cut a corpus larger than memory into tokens, before it is trained on.", "tokenize", saves=True),
    "run": Verb("Give a model its input, get its output.", "run"),
    "look": Verb("Draw where a model looks while it writes.", "look"),
    "layers": Verb("Draw what each layer of a training run did.", "layers", saves=True),
    "runs": Verb("List, compare and draw what was trained.", "runs"),
    "consolidate": Verb("Make a checkpoint the model of its run.", "consolidate", saves=True),
    "compare": Verb("Train variants within one budget and draw them side by side.", "compare", saves=True),
    "cost": Verb("Tell what a training will take before it is started.", "cost"),
    "export": Verb("Write a model as the reference library opens it.", "export", saves=True),
    "convert": Verb("Rewrite old or other model files as a published folder.", "export", saves=True),
    "certify": Verb("Compare a model with the reference library.", "certify"),
    "models": Verb("List families, sizes and parameter counts.", "models"),
}


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """The command with its verbs; with one of them alone where that one is asked for, and only its file is opened."""
    asked = arguments[0] if arguments else ""
    app = typer.Typer(
        name="qkv",
        no_args_is_help=True,
        add_completion=False,
        add_help_option=asked not in VERBS,  # whose own help is read then
        rich_markup_mode=None,  # plain help: what it shows can be copied
        pretty_exceptions_enable=False,
    )
    app.callback()(every_verb)
    for name, verb in VERBS.items():
        if name == asked or asked not in VERBS:
            found = getattr(import_module(f"qkv.cli.{verb.file}"), name)
            if isinstance(found, typer.Typer):
                app.add_typer(found, name=name, short_help=verb.summary)
            else:
                app.command(name, cls=PlainCommand, short_help=verb.summary)(found)
    return app


def print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"qkv {version('qkv')}")
        raise typer.Exit


def every_verb(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    """Every transformer, from one set of parts: train one on your own data, run it, look into it."""


# What BadParameter is a kind of, as is every error of typing a command; typer gives it no name of its own.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]
SHOW = warnings.showwarning
AROUND = 40  # letters that are shown before and after what cannot be written
NO_MEMORY = ("allocate memory", "out of memory")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 2 for what a person can mend, 130 after Ctrl-C and 143 after SIGTERM.

    `certify` has a code of its own: 1 where answers differ.
    """
    hush()
    ALONE.set(arguments is None)
    if ALONE.get():
        for_good()
        share_cores()
    typed = sys.argv[1:] if arguments is None else list(arguments)
    TYPED.set(["qkv", *typed])
    try:
        if arguments is None:
            ready_streams(answers=not (typed and typed[0] in VERBS and VERBS[typed[0]].saves))
            if typed and typed[0] in VERBS and "--help" not in typed:
                check_address_space()
                keep_triton_apart()
        with warnings.catch_warnings():
            warnings.showwarning = tell
            code = app_for(typed)(typed, prog_name="qkv", standalone_mode=False)  # the code of a typer.Exit, else None
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except UsageError as error:
        return complain_of_usage(error)
    except QkvError as error:
        return complain(str(error))
    except UnicodeEncodeError as error:  # a file's name that the system's encoding has no letters for
        name = error.object[max(0, error.start - AROUND) : error.end + AROUND]
        return complain(
            f"{name!r} cannot be written in {error.encoding}: give names in UTF-8, and take a locale that has it "
            "(PYTHONUTF8=1)."
        )
    except OSError as error:  # what no room foresaw: standard output on a full disk
        return complain(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}.")
    except (MemoryError, RuntimeError) as error:  # torch has no type of its own for memory that is not on a GPU
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in NO_MEMORY):
            raise
        limit = address_space()
        limited = "" if limit is None else f" (This process may have {limit / 2**30:.1f} GiB of addresses: ulimit -v.)"
        return complain(
            f"There is not enough memory for this: take a smaller model, shorter texts or smaller batches.{limited}"
        )
    finally:
        ending()
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
    print(who, printable(" ".join(legible(message).split())), file=sys.stderr)
    return 2


def printable(text: str) -> str:
    """What a file says may steer a terminal, so signs that do not show are spelled."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
