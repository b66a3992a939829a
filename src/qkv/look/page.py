"""Attention of one or many inputs as one HTML file that needs nothing else: no network, no fonts, no server.

The averages are plain tables, there without JavaScript; the script adds the choice of layer and head and follows the
pointer. Whatever a token holds, it is text: it is escaped in the markup, cannot end the data block it travels in, and
the page's content policy runs the page's own script and no other.

q queries (rows), k keys (columns).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from qkv.errors import QkvError
from qkv.files import write_whole
from qkv.look.colour import LEVELS, PAPER, SCREEN, Rgb, hexadecimal, ink_on, level
from qkv.look.labels import escaped, shortened
from qkv.look.maps import AttentionMap, AttentionRecord, Kind
from qkv.look.table import WRITTEN_FROM, map_table, written

PAGE_LIMIT = 64  # rows and columns of a map that are shown; the page says when there are more

_LEAD = (
    "Each row is a token the model writes and each column a token it reads; the stronger the colour of a cell, the "
    "more the model looked there while writing. Every row sums to one: that is the attention a token has to spend."
)
_SIDES = {  # what the rows and the columns of a kind are, beside their tokens
    Kind.CROSS: ("writes", "reads"),
    Kind.ENCODER: ("token", "looks at"),
    Kind.DECODER: ("writes", "looks at"),
    Kind.TEXT: ("token", "looks at"),
}
_WHOLE = "\n".join(
    (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "img-src data:; script-src '{script_hash}'\">",
        '<link rel="icon" href="data:,">\n<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>',
        '<header class="top"><span class="mark"><b>q</b>k<b>v</b></span>',
        '<button class="scheme" type="button" hidden>Dark</button></header>',
        '<main>\n<h1>{title}</h1>\n<p class="lead">{lead}</p>\n{about}{scale}{nav}{inputs}</main>',
        "<footer>One file, nothing loaded from elsewhere. Colours follow the square root of a weight, the same on "
        "every map.</footer>",
        "<script>{script}</script>\n</body>\n</html>\n",
    )
)


def attention_page(
    records: Sequence[AttentionRecord], title: str = "Where the model looks", about: str = "", limit: int = PAGE_LIMIT
) -> str:
    """The page as one string of HTML. `about` may say which model this is; `limit` caps the tokens of a map."""
    if not records:
        raise QkvError("An attention page needs at least one input to show, and it was given none.")
    script = resources.files("qkv.look").joinpath("page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _WHOLE.format(
        script_hash=f"sha256-{digest}",
        title=escaped(title),
        style=_style(),
        lead=escaped(_LEAD),
        about=f'<p class="about">{escaped(about)}</p>\n' if about else "",
        scale=_scale(),
        nav=_nav(records) if len(records) > 1 else "",
        inputs="".join(_input(number, record, limit) for number, record in enumerate(records, start=1)),
        script=script,
    )


def write_page(
    records: Sequence[AttentionRecord],
    path: Path,
    title: str = "Where the model looks",
    about: str = "",
    limit: int = PAGE_LIMIT,
) -> Path:
    """Write the page of `records` to `path`, whole or not at all."""
    return write_whole(path, attention_page(records, title, about, limit).encode("utf-8"))


def _input(number: int, record: AttentionRecord, limit: int) -> str:
    """One input: its text and output, its map, the averages of other kinds, and the data of every head."""
    long = len(record.source) + len(record.target) > 60
    averages = [record.average(kind) for kind in record.kinds]
    others = "".join(
        f'<details class="averages"><summary>{average.kind.heading}</summary>\n{_figure(average, limit)}</details>\n'
        for average in averages[1:]
    )
    written = (
        '<span class="arrow" aria-hidden="true">→</span><span class="hidden">, output: </span>'
        f'<bdi class="target">{escaped(record.target)}</bdi>'
    )
    return (
        f'<section class="input" id="input-{number}" aria-labelledby="pair-{number}">\n'
        f'<h2 class="pair{" long" if long else ""}" id="pair-{number}">'
        f'<span class="hidden">Input: </span><bdi class="source">{escaped(record.source)}</bdi>'
        f"{written if record.target else ''}</h2>\n"
        '<div class="stage"><div class="view"><div class="strips"></div>\n'
        f'{_figure(averages[0], limit)}<p class="readout" aria-live="polite"></p></div></div>\n'
        f'{others}<script type="application/json">{_json(_data(record, limit))}</script>\n</section>\n'
    )


def _figure(average: AttentionMap, limit: int) -> str:
    shown = average.cropped(limit)
    name = f"{average.kind.heading}, {average.name}"
    table = map_table(shown.average(), shown.queries, shown.keys, name, lambda step: f"class=c{step}")
    cell, look = _cell(shown)
    table = table.replace('<table class="map">', f'<table class="{look}" style="--cell:{cell}px">', 1)
    return (
        f"<figure><figcaption><b>{average.kind.heading}</b> · {escaped(average.name)}</figcaption>\n"
        f'<p class="note">{escaped(average.crop_note(limit))}</p>\n'
        f'<div class="scroll">{table}</div></figure>\n'
    )


def _cell(shown: AttentionMap) -> tuple[int, str]:
    """The side of a cell in pixels and the classes of the table: larger maps get smaller cells without numbers."""
    names = 9 * max(len(shortened(query)) for query in shown.queries)  # about the width of the row labels
    cell = min(46, max(10, (670 - names) // max(len(shown.keys), len(shown.queries)) - 2))
    upright = max(len(shortened(key)) for key in shown.keys) * (5 + cell * 0.075) > cell
    return cell, " ".join(["map", *["upright"] * upright, *["dense"] * (cell < 30)])


def _data(record: AttentionRecord, limit: int) -> dict[str, Any]:
    """What the script shows: every head of every layer, and the averages, with their labels."""
    kinds = []
    for kind in record.kinds:
        maps = [each.cropped(limit) for each in record.of(kind)]
        alone = len(maps) == 1 and maps[0].heads == 1
        layers = [
            {"label": "the only head" if alone else f"layer {number}", "name": each.name, "heads": _heads(each)}
            for number, each in enumerate(maps, start=1)
        ]
        if len(maps) > 1:
            average = record.average(kind).cropped(limit)
            layers.insert(0, {"label": average.name, "name": "", "heads": _heads(average)})
        rows, columns = _SIDES[kind]
        cell, look = _cell(maps[0])
        kinds.append(
            {
                "heading": kind.heading,
                "rows": rows,
                "columns": columns,
                "queries": [shortened(label) for label in maps[0].queries],
                "keys": [shortened(label) for label in maps[0].keys],
                "note": record.of(kind)[0].crop_note(limit),
                "cell": cell,
                "look": look,
                "layers": layers,
            }
        )
    return {"kinds": kinds}


def _heads(attention: AttentionMap) -> list[dict[str, str]]:
    heads = [
        {"label": f"head {head + 1}", "weights": packed(attention.weights[head])} for head in range(attention.heads)
    ]
    if attention.heads > 1:
        heads.insert(0, {"label": "average of its heads", "weights": packed(attention.average())})
    return heads


def packed(weights: np.ndarray) -> str:
    """Weights [q k] as 16-bit fractions of one, little-endian, in base64: a third of what decimals would take."""
    return base64.b64encode(np.rint(np.clip(weights, 0, 1) * 65535).astype("<u2").tobytes()).decode()


def _json(data: dict[str, Any]) -> str:
    """JSON that cannot end the <script> element it stands in, nor start a comment there."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _nav(records: Sequence[AttentionRecord]) -> str:
    links = "".join(
        f'<a href="#input-{number}"><bdi>{escaped(record.source[:80]) or "∅"}</bdi></a>'
        for number, record in enumerate(records, start=1)
    )
    return f'<nav aria-label="Inputs">{links}</nav>\n'


def _scale() -> str:
    marks = "".join(f'<span style="left:{mark**0.5:.0%}">{written(mark)}</span>' for mark in (0, 0.1, 0.25, 0.5, 1))
    return f'<div class="scale" aria-hidden="true">weight <div><i></i>{marks}</div></div>\n'


def _style() -> str:
    """The style sheet with both ramps written in; the dark one serves a dark system and the page's own switch."""
    sheet = resources.files("qkv.look").joinpath("page.css").read_text(encoding="utf-8")
    before, _, rest = sheet.partition("\nDARK {")
    block, _, after = rest.partition("\n}")
    dark = f"{block}\n{_ramp_variables(SCREEN)}"
    ramp = ", ".join(f"var(--c{step})" for step in range(LEVELS))
    return "".join(
        (
            f":root {{ {_ramp_variables(PAPER)} }}\n{before}\n",
            f"@media (prefers-color-scheme: dark) {{ :root:not([data-scheme=light]) {{{dark} }} }}\n",
            f":root[data-scheme=dark] {{{dark} }}",
            after.replace("RAMP", ramp),
            "".join(f".c{step}{{background:var(--c{step});color:var(--i{step})}}" for step in range(LEVELS)),
            f"\n.strip span:is({', '.join(f'.c{step}' for step in range(int(_shown_from())))}){{color:inherit}}\n",
        )
    )


def _ramp_variables(ramp: Sequence[Rgb]) -> str:
    """--c0 ... for the colours, --i0 ... for the ink on them: none where a weight is too small to be written."""
    inks = ["transparent" if step < _shown_from() else hexadecimal(ink_on(ramp[step])) for step in range(LEVELS)]
    colours = (f"--c{step}:{hexadecimal(ramp[step])};--i{step}:{inks[step]}" for step in range(LEVELS))
    return ";".join(colours) + ";"


def _shown_from() -> int:
    return int(level(np.array(WRITTEN_FROM)))
