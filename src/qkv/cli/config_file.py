"""Options of a command from a file: any of them by its name, alone or behind that of its group (`run.steps`)."""

import inspect
import json
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli.groups import Command, groups_of
from qkv.cli.process import TYPED
from qkv.cli.train_ranks import going_on, started
from qkv.errors import QkvError, legible, nearest_or_all

OF_A_SESSION = ("config", "resume", "overwrite")  # what is said of one start of a run, and not of the run
COMMAND = "command"
STANDARD_INPUT = "-"


def configurable(command: Command) -> Command:
    """The command with --config and --report-to, whose runs keep all of its options and how they can be repeated."""
    own = list(inspect.signature(command).parameters.values())
    groups = groups_of(command)

    def take(context: typer.Context, file: Path | None) -> Path | None:
        if file is not None:
            flags = {each.name: bool(getattr(each, "is_flag", False)) for each in context.command.params}
            several = {each.name for each in context.command.params if getattr(each, "multiple", False)}
            values = read_config(file, verb(context), groups, [each.name for each in own] + ["report_to"])
            context.default_map = {
                name: value_of(file, name, value, flags[name], name in several) for name, value in values.items()
            }
        return file

    config = Annotated[
        Path | None,
        typer.Option(
            callback=take, is_eager=True, help="TOML file with options by their names; the command line goes first."
        ),
    ]
    report_to = Annotated[
        list[str] | None,
        typer.Option(help="Also tell tensorboard, wandb or trackio, as wandb:project; may be repeated."),
    ]
    kind = inspect.Parameter.KEYWORD_ONLY
    seen = [
        *own,
        inspect.Parameter("report_to", kind, default=None, annotation=report_to),
        inspect.Parameter("config", kind, default=None, annotation=config),
        inspect.Parameter("typed", kind, annotation=typer.Context),
    ]

    @wraps(command)
    def called(*, typed: typer.Context, config: Path | None, report_to: list[str] | None, **options: Any) -> None:
        from qkv.train.origin import CONFIGURATION, Origin, started_by
        from qkv.train.watchers import watcher_of

        all_options = {**options, "report_to": report_to}
        out = options.get("out")
        origin = Origin(
            command=TYPED.get() or ["qkv", *sys.argv[1:]],
            configuration=written(verb(typed), groups, all_options),
            repeat=None if STANDARD_INPUT in _given(options, "data") else repeating(verb(typed), out, CONFIGURATION),
            watchers=[watcher_of(each) for each in report_to or ()],
        )
        with started_by(origin):
            command(**going_on(options))

    called.__signature__ = inspect.Signature(seen)  # type: ignore[attr-defined]  # what inspect looks for
    called.__annotations__ = {each.name: each.annotation for each in seen}
    del called.__wrapped__
    return called


def _given(options: Mapping[str, Any], name: str) -> list[Any]:
    """What an option says, once or several times."""
    value = options.get(name)
    return list(value) if isinstance(value, list | tuple) else [value]


def verb(context: typer.Context) -> str:
    """`train lm`"""
    return context.command_path.partition(" ")[2]


def repeating(command: str, out: Any, file: str) -> str:
    """One command that makes the run anew, beside it; in the folder where the first one was given."""
    from qkv.train.origin import for_shell

    folder = os.path.normpath(out)
    return for_shell(
        *started(["qkv", *command.split(), "--config", os.path.join(folder, file), "--out", f"{folder}-again"])
    )


def read_config(file: Path, command: str, groups: Mapping[str, Sequence[str]], known: Sequence[str]) -> dict[str, Any]:
    """Values by the name of their option."""
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise QkvError(
            f"The configuration {file} cannot be read ({(error.strerror or str(error)).lower()})."
        ) from error
    except (ValueError, RecursionError) as error:  # neither TOML nor UTF-8, or nested without end
        raise QkvError(f"The configuration {file} is not TOML in UTF-8: {error}.") from error
    made_for = found.pop(COMMAND, command)
    if made_for != command:
        raise QkvError(f"{file} is the configuration of qkv {made_for}, not of qkv {command}.")
    values: dict[str, Any] = {}
    for spelled, value in _dotted(found, groups):
        group, _, name = spelled.replace("-", "_").rpartition(".")
        if name not in (groups.get(group, ()) if group else known) or name in OF_A_SESSION:
            options = [each for each in known if each not in OF_A_SESSION]
            behind = [f"{group}.{each}" for group, names in groups.items() for each in names if each in options]
            meant = nearest_or_all(spelled, behind if group else [*options, *groups])
            raise QkvError(f"{file}: qkv {command} has no option {spelled}: {meant}")
        if name in values:
            raise QkvError(f"{file} gives the option {name} twice.")
        values[name] = value
    return values


def _dotted(found: Mapping[str, Any], groups: Mapping[str, Sequence[str]]) -> list[tuple[str, Any]]:
    """Options by name, those of a table of a group behind its name."""
    options: list[tuple[str, Any]] = []
    for name, value in found.items():
        if isinstance(value, dict) and name.replace("-", "_") in groups:
            options += [(f"{name}.{inner}", each) for inner, each in value.items()]
        else:
            options.append((name, value))
    return options


def value_of(file: Path, name: str, value: Any, is_flag: bool, several: bool) -> Any:
    """As the command line would give it, so that it is checked alike."""
    if is_flag != isinstance(value, bool):
        should = "true or false" if is_flag else "a text or a number"
        raise QkvError(f"{file}: the option {name} should be {should}, but is {json.dumps(value, default=str)}.")
    if is_flag:
        return value
    if several:
        return [str(each) for each in (value if isinstance(value, list) else [value])]
    if isinstance(value, dict) and name == "size":  # size.width = 128 is --size width=128
        return ",".join(f"{key}={each}" for key, each in value.items())
    if isinstance(value, dict | list):
        raise QkvError(
            f"{file}: the option {name} should be one text or number, but is {json.dumps(value, default=str)}."
        )
    return str(value)


def written(command: str, groups: Mapping[str, Sequence[str]], options: Mapping[str, Any]) -> str:
    """All options that have a value, as TOML that `read_config` takes."""
    kept = {name: value for name, value in options.items() if value is not None and name not in OF_A_SESSION}
    grouped = {name for names in groups.values() for name in names}
    lines = [f"{COMMAND} = {_toml(command)}", *_lines(kept, [name for name in kept if name not in grouped])]
    for group, names in groups.items():
        if inner := _lines(kept, names):
            lines += ["", f"[{group}]", *inner]
    return "\n".join(lines) + "\n"


def _lines(values: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [f"{name} = {_toml(values[name])}" for name in names if name in values]


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(legible(str(value)), ensure_ascii=False).replace("\x7f", "\\u007f")
