"""Every citation leads somewhere: `[vaswani2017 eq.1]` in `src/` to `papers/vaswani2017.md`, and each row of that
page's table (equation | symbol | test) to a symbol of qkv and to a test that exists.
"""

import ast
import importlib
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAPERS = ROOT / "papers"
CITATION = re.compile(r"\[([a-z]+\d{4}[a-z]?)(?: [^\]]*)?\]")
HEADER = ("equation", "symbol", "test")


class Row(NamedTuple):
    equation: str
    symbol: str  # qkv.parts.norm.LayerNorm
    test: str  # tests/parts/test_norm.py::test_name


def cited_keys(text: str) -> set[str]:
    return set(CITATION.findall(text))


def rows_of(page: str) -> list[Row]:
    """The rows of the page's table whose header is `equation | symbol | test`."""
    tables = re.findall(r"(?:^\|.*\|[ ]*$\n?)+", page, flags=re.MULTILINE)
    for table in tables:
        lines = [[cell.strip(" `") for cell in line.strip(" |").split("|")] for line in table.splitlines()]
        if tuple(lines[0]) == HEADER:
            return [Row(*cells) for cells in lines[2:]]
    return []


def missing_symbol(symbol: str) -> str:
    """Why `symbol` cannot be reached, or an empty string."""
    module_name, names = symbol, []
    while module_name:
        try:
            found = importlib.import_module(module_name)
            break
        except ModuleNotFoundError:
            module_name, _, last = module_name.rpartition(".")
            names.insert(0, last)
    else:
        return f"no module on the way to {symbol}"
    for name in names:
        if not hasattr(found, name):
            return f"{symbol} does not exist: {found.__name__} has no {name}"
        found = getattr(found, name)
    return ""


@cache
def names_of_tests_in(file: Path) -> set[str]:
    """Names of the test functions of a file, methods as `Class::name`."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
            names |= {f"{node.name}::{name}" for name in methods if name.startswith("test")}
    return names


def missing_test(node_id: str) -> str:
    """Why the test cannot be found, or an empty string."""
    name, _, function = node_id.partition("::")
    file = ROOT / name
    if not name.startswith("tests/") or not file.is_file():
        return f"{name} is not a file under tests/"
    if function not in names_of_tests_in(file):
        return f"{name} has no test {function!r}"
    return ""


SOURCES = sorted((ROOT / "src").rglob("*.py"))
CITED = set().union(*(cited_keys(file.read_text(encoding="utf-8")) for file in SOURCES))
PAGES = sorted(page for page in PAPERS.glob("*.md") if page.stem != "index")


def test_every_citation_in_the_source_has_a_page() -> None:
    assert sorted(CITED - {page.stem for page in PAGES}) == []


def test_every_page_is_cited_in_the_source() -> None:
    assert sorted({page.stem for page in PAGES} - CITED) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_leads_to_symbols_and_tests_that_exist(page: Path) -> None:
    rows = rows_of(page.read_text(encoding="utf-8"))
    assert rows, f"papers/{page.name} has no table {' | '.join(HEADER)}"
    problems = [problem for row in rows for problem in (missing_symbol(row.symbol), missing_test(row.test)) if problem]
    assert problems == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_symbols_whose_file_cites_it(page: Path) -> None:
    """A page and the code point at each other: at least one symbol of the table lives in a file that cites the key."""
    citing = {file for file in SOURCES if page.stem in cited_keys(file.read_text(encoding="utf-8"))}
    paths = [file.relative_to(ROOT / "src").with_suffix("").parts for file in citing]
    modules = {".".join(path).removesuffix(".__init__") for path in paths}
    symbols = [row.symbol for row in rows_of(page.read_text(encoding="utf-8"))]
    assert any(symbol == module or symbol.startswith(module + ".") for symbol in symbols for module in modules)


def test_the_checks_can_fail() -> None:
    assert cited_keys("x = y  # [vaswani2017 eq.1], [su2021], [b h q k], [1234], [wu2016 eq.14 sec.7]") == {
        "vaswani2017",
        "su2021",
        "wu2016",
    }
    assert missing_symbol("qkv.errors.QkvError") == ""
    assert missing_symbol("qkv.errors") == ""
    assert "has no Nothing" in missing_symbol("qkv.errors.Nothing")
    assert missing_symbol("no_such_package.thing") != ""
    assert missing_test("tests/test_citations.py::test_the_checks_can_fail") == ""
    assert missing_test("tests/test_citations.py::test_nothing") != ""
    assert missing_test("tests/no_such_file.py::test_nothing") != ""
    table = "# T\n\n| equation | symbol | test |\n|---|---|---|\n| eq. 1 | `qkv.a.b` | `tests/t.py::test_x` |\n"
    assert rows_of(table) == [Row("eq. 1", "qkv.a.b", "tests/t.py::test_x")]
    assert rows_of("| a | b |\n|---|---|\n| 1 | 2 |\n") == []
