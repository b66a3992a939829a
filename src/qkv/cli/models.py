"""`qkv models`: the families, their sizes and parameter counts."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.api.families import FamilySize


def models(
    family: Annotated[str | None, typer.Argument(help="Show all sizes of one family.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON, with every size.")] = False,
    attention: Annotated[
        bool, typer.Option("--attention", help="List what `qkv train --attention` can put in place of a model's own.")
    ] = False,
) -> None:
    """List the families of models, their sizes and parameter counts, which are computed without allocating a model.

    \b
    Example:
      qkv models
      qkv models transformer
      qkv models gpt2
      qkv models --attention
    """
    from qkv.api.families import family_sizes
    from qkv.models.attention_choice import KINDS

    if attention:
        if family is not None:
            raise QkvError(f"--attention lists what there is for all families: leave out {family}.")
        spelled = {kind.form: kind.says for kind in KINDS.values()}
        width = max(map(len, spelled))
        lines = [f"{form:<{width}}  {says}" for form, says in spelled.items()]
        typer.echo(json.dumps(spelled, indent=2) if as_json else "\n".join(lines))
        return
    found = family_sizes(family)
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
    elif family is None:
        for line in overview(found):
            typer.echo(line)
    else:
        for line in details(found):
            typer.echo(line)


def overview(found: list["FamilySize"]) -> list[str]:
    """One line a size, the family's summary at its first."""
    rows = [("family", "size", "parameters", "")]
    before = ""
    for each in found:
        name, summary = ("", "") if each.family == before else (each.family, each.summary)
        rows.append((name, each.size, f"{each.parameters:,}", summary))
        before = each.family
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip() for row in rows]
    desk = next(each for each in found if not each.published)
    tokens = f"{desk.sizes['vocabulary']:,} tokens"
    note = f"The vocabulary of the size {desk.size} is that of your data; here it is counted with {tokens}."
    return [*lines, "", note, "More of one family: qkv models FAMILY"]


def details(found: list["FamilySize"]) -> list[str]:
    """Every number of every size, the sizes side by side."""
    first = found[0]
    header = ["", *(each.size for each in found)]
    rows = [header, ["parameters", *(f"{each.parameters:,}" for each in found)]]
    rows += [[name, *(shown(name, each.sizes[name]) for each in found)] for name in first.sizes]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = [
        "  ".join(
            [f"{row[0]:<{widths[0]}}", *(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    heads = [f"heads: {', '.join(first.heads)}; counted with {first.counted_head}", ""] if first.heads else []
    return [f"{first.family}: {first.summary}", "", *heads, *lines]


def shown(name: str, value: object) -> str:
    if value is None:
        return "shared" if name == "source_vocabulary" else "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
