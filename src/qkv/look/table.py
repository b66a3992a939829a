"""An attention map as an HTML table: readable by eye, by a screen reader and by a spreadsheet.

q queries (rows), k keys (columns).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from qkv.look.colour import LEVELS, PAPER, hexadecimal, ink_on, level
from qkv.look.labels import escaped, shortened, visible

WRITTEN_FROM = 0.1  # a weight below this is coloured, but its number is not shown


def map_table(
    weights: np.ndarray,
    queries: Sequence[str],
    keys: Sequence[str],
    caption: str,
    paint: Callable[[int], str],
) -> str:
    """A table of weights [q k] with a heading for each row and column.

    `paint` gives the HTML attribute that colours a cell of a level: a class on a page, a style in a notebook.
    """
    painted = [paint(step) for step in range(LEVELS)]
    steps = level(weights)  # [q k]
    head = "".join(f'<th scope="col"{_tip(key)}><bdi>{escaped(shortened(key))}</bdi></th>' for key in keys)
    rows = "".join(
        f'<tr><th scope="row"{_tip(query)}><bdi>{escaped(shortened(query))}</bdi></th>'
        + "".join(f"<td {painted[step]}>{written(weight)}</td>" for step, weight in zip(*cells, strict=True))
        + "</tr>\n"
        for query, *cells in zip(queries, steps.tolist(), weights.tolist(), strict=True)
    )
    return (
        f'<table class="map">\n<caption>{escaped(caption)}</caption>\n'
        f"<thead><tr><td></td>{head}</tr></thead>\n<tbody>{rows}</tbody>\n</table>"
    )


def notebook_html(
    weights: np.ndarray, queries: Sequence[str], keys: Sequence[str], caption: str, note: str = ""
) -> str:
    """A small table [q k] that brings its own colours: a notebook gives it no style sheet."""
    table = map_table(weights, queries, keys, caption, _notebook_paint)
    small = f"<div><small>{escaped(note)}</small></div>" if note else ""
    return f'<div style="overflow-x:auto;font-size:11px;line-height:1">{table}{small}</div>'


def written(weight: float) -> str:
    """A weight to two places, as short as can be: 0, .43, 1."""
    text = f"{weight:.2f}"
    return {"0.00": "0", "1.00": "1"}.get(text, text.removeprefix("0"))


def _notebook_paint(step: int) -> str:
    colour = PAPER[step]
    shown = step >= level(np.array(WRITTEN_FROM))
    ink = ink_on(colour) if shown else colour
    return (
        f'style="background:{hexadecimal(colour)};color:{hexadecimal(ink)};'
        'min-width:2em;padding:5px 1px;text-align:center"'
    )


def _tip(label: str) -> str:
    """The whole label for a pointer that rests on a shortened one."""
    return f' title="{escaped(visible(label))}"' if shortened(label) != visible(label) else ""
