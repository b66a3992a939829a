"""A command that reads plain values itself gives what typer gives, and leaves to typer what is not plain."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.core import TyperCommand

from qkv.cli.groups import with_groups
from qkv.cli.plain import NotPlain, PlainCommand
from tests.cli.command import qkv


@dataclass(frozen=True, kw_only=True)
class Group:
    count: Annotated[int | None, typer.Option(min=1, max=9)] = None
    share: Annotated[float, typer.Option(min=0.0)] = 0.5
    stop: Annotated[list[str] | None, typer.Option()] = None
    out: Annotated[Path | None, typer.Option()] = None


@with_groups
def command(
    model: Annotated[str, typer.Argument()],
    group: Group,
    texts: Annotated[list[str] | None, typer.Argument()] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    fast: Annotated[bool, typer.Option()] = True,
    device: Annotated[str, typer.Option()] = "auto",
) -> None:
    """One of each kind."""


def made(kind: type[TyperCommand]) -> Any:
    app = typer.Typer(add_completion=False)
    app.command("command", cls=kind)(command)
    return typer.main.get_command(app)


def parsed(kind: type[TyperCommand], line: str) -> dict[str, Any]:
    found = made(kind).make_context("command", shlex.split(line)).params
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


PLAIN = [
    "m",
    "m a b",
    "m --json a --no-fast b --device cpu",
    "m --count 3 --share 0.25 a",
    "m --count=9 --share=2 --device=",
    "m --stop x --stop 'y z' -- --json",
    "m --device cpu --device cuda",
]


@pytest.mark.parametrize("line", PLAIN)
def test_plain_values_are_those_of_typer(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = parsed(TyperCommand, line)
    with monkeypatch.context() as alone:
        alone.setattr(TyperCommand, "parse_args", None)  # nobody is asked
        found = parsed(PlainCommand, line)
    assert {name: value or None for name, value in found.items()} == {
        name: value or None for name, value in expected.items()
    }
    assert {name: type(value) for name, value in found.items() if value} == {
        name: type(value) for name, value in expected.items() if value
    }


@pytest.mark.parametrize(
    "line",
    ["", "m --help", "m --count 0", "m --count 10", "m --count x", "m --count 1_0", "m --share 1e-1", "m --share -1",
     "m --share nan", "m --out here", "m 'a\udc80'"],
)  # fmt: skip
def test_all_else_is_left_to_typer(line: str) -> None:
    plain = made(PlainCommand)
    context = plain.context_class(plain, info_name="command")
    with pytest.raises(NotPlain):
        plain.values(context, shlex.split(line))


def test_what_is_left_to_typer_is_read_by_it() -> None:
    assert parsed(PlainCommand, "m --share 1e-1 --out here")["share"] == 0.1
    assert Path(parsed(PlainCommand, "m --share 1e-1 --out here")["out"]) == Path("here")
    outcome = qkv("run", "m", "text", "--max-tokens", "0")
    assert outcome.code == 2
    assert outcome.complaint.endswith("See qkv run --help.")
