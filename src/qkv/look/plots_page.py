"""Figures side by side: a table, what follows from it, and plots, as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qkv.files import write_whole
from qkv.look.axes import Axis
from qkv.look.curves import Curve, curve_png, curve_svg
from qkv.look.labels import escaped
from qkv.look.picture_page import whole_page

_STYLE = (
    "<style>table { border-collapse: collapse; display: block; overflow-x: auto; } "
    "th, td { padding: 5px 12px; border-bottom: 1px solid #e2dfd6; text-align: right; white-space: nowrap; } "
    "th:first-child, td:first-child { text-align: left; } h3 { font: 600 17px/1.3 system-ui, sans-serif; } "
    "svg { display: block; }</style>\n"
)


@dataclass(frozen=True)
class Plot:
    """One plot: where it is kept as a picture, its curves, and what to know when reading it."""

    file: str  # without its folder
    title: str
    curves: Sequence[Curve]
    x: Axis
    y: Axis
    note: str = ""


@dataclass(frozen=True)
class Table:
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Remarks:
    """Sentences about one thing, in groups that have a name."""

    name: str
    groups: Sequence[tuple[str, Sequence[str]]]


def plots_page(
    title: str, about: Sequence[str], table: Table, remarks: Sequence[Remarks], plots: Sequence[Plot]
) -> str:
    """The page as one string of HTML."""
    body = _STYLE + "".join(f"<p>{escaped(line)}</p>\n" for line in about)
    body += f"<section>{_table(table)}</section>\n"
    if remarks:
        body += f"<section><h2>Where each wins and loses</h2>\n{''.join(map(_remarks, remarks))}</section>\n"
    body += "".join(map(_plot, plots))
    return whole_page(title, body)


def write_plots_page(
    folder: Path,
    title: str,
    about: Sequence[str],
    table: Table,
    remarks: Sequence[Remarks],
    plots: Sequence[Plot],
) -> list[Path]:
    """`page.html` and a PNG file of every plot, each whole or not at all."""
    page = write_whole(folder / "page.html", plots_page(title, about, table, remarks, plots).encode())
    return [page, *(curve_png(plot.curves, folder / plot.file, plot.x, plot.y, plot.title) for plot in plots)]


def _table(table: Table) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escaped(cell)}</{tag}>" for cell in cells) + "</tr>\n"

    rows = "".join(line(row, "td") for row in table.rows)
    return f"<table><thead>{line(table.head, 'th')}</thead><tbody>{rows}</tbody></table>"


def _remarks(remarks: Remarks) -> str:
    groups = "".join(
        f"<p>{escaped(name)}</p>\n<ul>{''.join(f'<li>{escaped(line)}</li>' for line in lines)}</ul>\n"
        for name, lines in remarks.groups
    )
    return f"<h3>{escaped(remarks.name)}</h3>\n{groups}"


def _plot(plot: Plot) -> str:
    note = f"<figcaption>{escaped(plot.note)}</figcaption>" if plot.note else ""
    return (
        f"<section><h2>{escaped(plot.title)}</h2>\n"
        f"<figure>{curve_svg(plot.curves, plot.x, plot.y)}{note}</figure></section>\n"
    )
