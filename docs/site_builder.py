"""The little that qkv's site needs beyond plain Sphinx.

- An API page holds one line, `<!-- api: parts -->`; it is replaced by a section for each module of that room.
- The symbols in the tables of `papers/` become links into those pages.
- Docstrings are plain text in the style of the code (`names` in single backticks, `[vaswani2017 eq.1]` for papers,
  indented blocks for layouts). They are rewritten as reStructuredText, each citation a link to the paper's page.
- Formulas become MathML, which browsers draw by themselves.
- The navigation beside each page is drawn from titles alone, without copying every name of the API for each page.
- `site/index.html` leads to the start page.
"""

import importlib
import inspect
import re
from glob import glob
from pathlib import Path
from posixpath import dirname
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.builders import Builder

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PACKAGE = ROOT / "src" / "qkv"

API_PLACE = re.compile(r"^<!-- api: (\w+) -->$", flags=re.MULTILINE)
CODE_SPAN = re.compile(r"(?::\w+(?::\w+)?:)?(``?)(.+?)\1", flags=re.DOTALL)
CITATION = re.compile(r"\[([a-z]+\d{4}[a-z]?)((?: [^\]]*)?)\]")
GLOB_LINE = re.compile(r"^([\w./]+\*)\n", flags=re.MULTILINE)
SYMBOL = re.compile(r"`(qkv\.[\w.]+)`")
LIST_ITEM = re.compile(r"^(?:[-*]|\d+\.) ")


# --- API pages -----------------------------------------------------------------------------------------------------


def modules_of(room: str) -> list[str]:
    """Public modules of a room in alphabetical order, packages first.

    Programs for GPUs and what launches them can be imported only where there is one; they are read as files.
    """
    if (PACKAGE / f"{room}.py").is_file():
        return [f"qkv.{room}"]
    files = sorted((PACKAGE / room).rglob("*.py"), key=lambda file: (file.parent, file.stem != "__init__", file.stem))
    names = [".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts) for file in files]
    left_out = re.compile(r"\._(?!_init__)|_(programs|triton|cuda)$")
    return [name.removesuffix(".__init__") for name in names if not left_out.search(name)]


def section(module: str) -> str:
    return f"## `{module}`\n\n```{{eval-rst}}\n.. automodule:: {module}\n```\n"


def front_door() -> str:
    """What `import qkv` gives: each public name, where it lives, and its first sentence."""
    package = importlib.import_module("qkv")
    rows = ["| name | defined in | what it is |", "|---|---|---|"]
    for name in sorted(getattr(package, "__all__", []), key=str.lower):
        thing = getattr(package, name)
        home = getattr(thing, "__module__", None)
        if home is None or not home.startswith("qkv."):
            continue
        first_sentence = re.split(r"(?<=\.) |\n\n", inspect.getdoc(thing) or "")[0].replace("\n", " ")
        rows.append(f"| {{py:obj}}`qkv.{name} <{home}.{thing.__name__}>` | `{home}` | {first_sentence} |")
    return "\n".join(rows)


def fill_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the modules of a room into its API page, what there is into the start page, links into a paper's table."""

    def contents(match: re.Match[str]) -> str:
        room = match.group(1)
        return front_door() if room == "qkv" else "\n".join(section(module) for module in modules_of(room))

    def existing(match: re.Match[str]) -> str:
        """A release may lack measured results or a log, and Sphinx minds a pattern that finds no page."""
        return match.group() if glob(f"{match.group(1)}.md", root_dir=DOCS) else ""

    source[0] = API_PLACE.sub(contents, source[0])
    if page == app.config.root_doc:
        source[0] = GLOB_LINE.sub(existing, source[0])
    if page.startswith("papers/"):
        source[0] = SYMBOL.sub(r"{py:obj}`\1`", source[0])


# --- Docstrings ----------------------------------------------------------------------------------------------------


def inline(text: str) -> str:
    """One paragraph of house style as reStructuredText."""

    def plain(piece: str) -> str:
        out, position = [], 0
        for match in CITATION.finditer(piece):
            out.append(re.sub(r"([\\*_|`])", r"\\\1", piece[position : match.start()]))
            key, where = match.groups()
            known = (ROOT / "papers" / f"{key}.md").is_file()
            out.append(rf":doc:`[{key}{where}] </papers/{key}>`\ " if known else rf"\[{key}{where}]")
            position = match.end()
        out.append(re.sub(r"([\\*_|`])", r"\\\1", piece[position:]))
        return "".join(out)

    out, position = [], 0
    for match in CODE_SPAN.finditer(text):
        code = " ".join(match.group(2).split())
        out += [plain(text[position : match.start()]), rf"\ ``{code}``\ "]
        position = match.end()
    return "".join([*out, plain(text[position:])])


def as_restructured_text(docstring: list[str]) -> list[str]:
    """A docstring's lines as reStructuredText: text flows, indented or tabular blocks stay as they stand."""
    result: list[str] = []
    block: list[str] = []
    kind = ""

    def finish() -> None:
        nonlocal kind
        if block and kind == "literal":
            result.extend(["::", "", *(f"    {line}" for line in block), ""])
        elif block:
            text = inline("\n".join(line.strip() for line in block)).split("\n")
            hanging = "  " if kind == "item" else ""
            bullet = "- " if kind == "item" else ""
            result.extend([f"{bullet}{text[0]}", *(f"{hanging}{line}" for line in text[1:]), ""])
        block.clear()
        kind = ""

    for line in docstring:
        if not line.strip():
            if kind == "literal":
                block.append(line)  # a layout may contain empty lines
            else:
                finish()
        elif LIST_ITEM.match(line):
            finish()
            kind = "item"
            block.append(LIST_ITEM.sub("", line))
        elif line.startswith((" ", "|", ">>>")) and kind != "item":
            if kind != "literal":
                finish()
            kind = "literal"
            block.append(line)
        else:
            if kind == "literal" or (kind == "item" and not line.startswith(" ")):
                finish()
            kind = kind or "paragraph"
            block.append(line)
    finish()
    return result


def rewrite_docstring(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_restructured_text(lines)


# --- Formulas ------------------------------------------------------------------------------------------------------


def draw_inline(self: Any, node: nodes.math) -> None:
    self.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def draw_block(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


# --- Navigation ----------------------------------------------------------------------------------------------------


def title_alone(contents: nodes.bullet_list) -> nodes.bullet_list:
    """A page's table of contents without its sections: the title, and the pages that are listed below it."""
    title = contents.deepcopy()
    for item in title.children:
        below = list(item.findall(addnodes.toctree))
        del item[1:]
        if below:
            item += nodes.bullet_list("", *below)
    return title


def navigate_by_titles(app: Sphinx, builder: Builder) -> None:
    """For every page that it writes, Sphinx copies what all pages contain, thousands of names, to keep their titles.

    Pages of source code stand nowhere in the navigation, so one folder of them has one and the same.
    """
    contents = app.env.tocs
    titles = {page: title_alone(toc) for page, toc in contents.items()}
    drawn: dict[str, str] = {}

    def offer_titles(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
        toctree = context["toctree"]
        place = page if page in titles else f"{dirname(page)}/"

        def toctree_of_titles(**options: Any) -> str:
            if place not in drawn:
                app.env.tocs = titles
                drawn[place] = toctree(**options)
                app.env.tocs = contents  # what stands to the right of a page: its own sections and names
            return drawn[place]

        context["toctree"] = toctree_of_titles

    app.connect("html-page-context", offer_titles, priority=400)  # before the theme, which draws the navigation


# --- The whole -----------------------------------------------------------------------------------------------------


def write_front_page(app: Sphinx, error: Exception | None) -> None:
    if error is None:
        start = f"{app.config.root_doc}.html"
        head = f'<meta charset="utf-8"><title>qkv</title><meta http-equiv="refresh" content="0; url={start}">'
        page = f'<!doctype html>{head}<a href="{start}">qkv</a>\n'
        Path(app.outdir, "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", inline_renderers=(draw_inline, None), block_renderers=(draw_block, None))
    app.connect("source-read", fill_page)
    app.connect("autodoc-process-docstring", rewrite_docstring)
    app.connect("write-started", navigate_by_titles)
    app.connect("build-finished", write_front_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
