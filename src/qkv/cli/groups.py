"""Options that belong together, as a dataclass that several commands can take as one parameter."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints

Command = Callable[..., None]
BY_COMMAND = "by command"  # in a field's metadata: a function from the name of a command to the field's default there


def with_groups(command: Command) -> Command:
    """The command with every option of its dataclass parameters as a parameter of its own, for typer to see."""
    own = list(inspect.signature(command).parameters.values())
    groups: dict[str, Any] = {each.name: each.annotation for each in own if is_dataclass(each.annotation)}
    seen = [each.replace(kind=each.KEYWORD_ONLY) for each in own if each.name not in groups]
    for group in groups.values():
        hints = get_type_hints(group, include_extras=True)
        for field in fields(group):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            if BY_COMMAND in field.metadata:
                default = field.metadata[BY_COMMAND](command.__name__.replace("_", "-"))
            kind = inspect.Parameter.KEYWORD_ONLY
            seen.append(inspect.Parameter(field.name, kind, default=default, annotation=hints[field.name]))

    @wraps(command)
    def called(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**given, **made)

    called.__signature__ = inspect.Signature(seen)  # type: ignore[attr-defined]  # what inspect looks for
    called.__annotations__ = {each.name: each.annotation for each in seen}
    del called.__wrapped__  # whose defaults are others
    called.groups = {name: [field.name for field in fields(group)] for name, group in groups.items()}  # type: ignore[attr-defined]
    return called


def groups_of(command: Command) -> dict[str, list[str]]:
    """The names of the options of each group of a command."""
    return dict(getattr(command, "groups", {}))


def given(*groups: Any) -> list[str]:
    """The names of the options that are not as they are by default."""
    return [
        field.name
        for group in groups
        for field in fields(group)
        if field.default is not MISSING and getattr(group, field.name) not in (field.default, [])
    ]


def flag(name: str) -> str:
    """As a person types it."""
    return f"--{name.replace('_', '-')}"
