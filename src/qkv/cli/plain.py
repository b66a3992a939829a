"""A command that reads plain values of its options by itself, so that it begins sooner.

typer reads every value by a library whose import takes as long as that of all our own files a model is run by. Texts,
whole numbers and decimals without a fault need none of that. Where anything else is typed, typer reads it all, and has
the words for what is wrong.
"""

import re
from types import NoneType
from typing import Any, get_args

from typer.core import TyperCommand

NUMBERS = {int: re.compile(r"\d{1,15}", re.ASCII), float: re.compile(r"\d{1,15}(\.\d{1,15})?", re.ASCII)}


class NotPlain(Exception):
    """A value that is left to typer."""


class PlainCommand(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            ctx.params.update(self.values(ctx, list(args)))
        except NotPlain:
            return super().parse_args(ctx, args)
        return []

    def values(self, ctx: Any, args: list[str]) -> dict[str, Any]:
        """The value of every parameter, given or not."""
        typed, left, _ = self.make_parser(ctx).parse_args(args=args)
        if left or ctx.default_map or set(typed) - {each.name for each in self.params}:  # `help` is none of them
            raise NotPlain
        hints = getattr(self.callback, "__annotations__", {})
        return {str(each.name): value_of(each, typed.get(each.name), hints.get(each.name)) for each in self.params}


def value_of(parameter: Any, typed: Any, hint: Any) -> Any:
    if parameter.callback is not None or parameter.envvar is not None:
        raise NotPlain
    if typed is None:
        if parameter.required or callable(parameter.default):
            raise NotPlain
        return parameter.default
    kind, *declared = get_args(hint)  # Annotated[int | None, typer.Option(min=1)]
    kinds = [each for each in get_args(kind) if each is not NoneType] if NoneType in get_args(kind) else [kind]
    if kinds == [bool] and isinstance(typed, bool):
        return typed
    if kinds == [list[str]] and not isinstance(typed, str):
        return [plain(str, each) for each in typed]
    if len(kinds) > 1 or not isinstance(typed, str):
        raise NotPlain
    value = plain(kinds[0], typed)
    least, most = (getattr(declared[0], name, None) for name in ("min", "max"))
    if (least is not None and value < least) or (most is not None and value > most):
        raise NotPlain
    return value


def plain(kind: Any, typed: str) -> Any:
    if kind is str and not any("\ud800" <= sign <= "\udfff" for sign in typed):  # bytes that were no text
        return typed
    if kind in NUMBERS and NUMBERS[kind].fullmatch(typed):
        return kind(typed)
    raise NotPlain
