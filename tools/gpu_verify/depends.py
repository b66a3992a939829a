"""Which files something depends on, found by walking imports, and one hash over what all of them hold.

Imports inside of functions count, those for type checkers alone do not; but where a package fetches a name when it is
asked for, they say where from. A package counts by its own file where modules in it are imported, and what that file
imports only where it is imported itself. Programs in CUDA C and C++ count where a module names them, with all headers
beside them.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {".cu": ".cuh", ".cpp": ".h"}  # and what they include
SHORT = 12  # digits of a hash


def hash_of(roots: Iterable[Path], beside: str = "", root: Path = ROOT) -> str:
    """Of the files that these depend on, and of what else decides, spelled out."""
    digest = hashlib.sha256(beside.encode())
    for name, held in sorted((file.relative_to(root).as_posix(), _digest(file)) for file in files_of(roots, root)):
        digest.update(name.encode() + b"\0" + held)
    return digest.hexdigest()[:SHORT]


@cache
def _digest(file: Path) -> bytes:
    return hashlib.sha256(substance(file)).digest()


@cache
def substance(file: Path) -> bytes:
    """What a file holds, without comments and docstrings where it is Python: alike for all versions of that."""
    text = file.read_text(encoding="utf-8")  # with all ends of lines alike
    if file.suffix != ".py":
        return text.encode()
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0] - 1] = lines[token.start[0] - 1][: token.start[1]]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines[first.lineno - 1 : first.end_lineno] = [""] * (
                    (first.end_lineno or first.lineno) - first.lineno + 1
                )
    return "\n".join(stripped for line in lines if (stripped := line.rstrip())).encode()


def files_of(roots: Iterable[Path], root: Path = ROOT) -> set[Path]:
    found, beside, waiting = set[Path](), set[Path](), list(roots)
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            imported, others = _next(file, root)
            waiting += imported
            beside |= others
    return found | beside


@cache
def _next(file: Path, root: Path) -> tuple[frozenset[Path], frozenset[Path]]:
    """The files of what a file imports; and its programs and the packages above, which are not gone into."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    imported = {own for name in _imports(tree) if (own := _file_of(name, file, root)) is not None}
    others = {each for own in imported for each in _packages_above(own, root)}
    others |= {each for source in _programs(tree, file) for each in _with_headers(source, root)}
    return frozenset(imported), frozenset(others)


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for other in node.orelse:
            yield from _imports(other)
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called == "import_module":
            yield str(node.args[0].value)
    for child in ast.iter_child_nodes(node):
        yield from _imports(child)


def _programs(tree: ast.AST, file: Path) -> Iterator[Path]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        suffix = next((each for each in SOURCES if node.value.endswith(each)), None)
        if suffix is None or len(node.value) > 60:
            continue
        source = file.with_suffix(suffix) if node.value == suffix else file.parent / node.value
        if source.exists():
            yield source


def _with_headers(source: Path, root: Path) -> set[Path]:
    """Those beside it, and those that all programs share."""
    folders = {source.parent, root / "src" / "qkv" / "parts"}
    return {source, *(each for folder in folders for each in folder.glob(f"*{SOURCES[source.suffix]}"))}


def _file_of(name: str, importer: Path, root: Path) -> Path | None:
    """Of a module, or of the module that a name is taken from; None for those of others."""
    parts = name.split(".")
    for base in (root / "src", root, importer.parent):
        for length in range(len(parts), 0, -1):
            place = base.joinpath(*parts[:length])
            for file in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
                if file.is_file() and root in file.parents:
                    home = _homes(file).get(parts[length]) if file.stem == "__init__" and length < len(parts) else None
                    return file if home is None else _file_of(home, file, root)
    return None


@cache
def _homes(package: Path) -> dict[str, str]:
    """The modules that a package takes names from, also of those that it fetches when they are asked for."""
    taken = (
        node for node in ast.walk(ast.parse(package.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
    )
    return {alias.asname or alias.name: f"{node.module}.{alias.name}" for node in taken for alias in node.names}


def _packages_above(file: Path, root: Path) -> set[Path]:
    above = (folder / "__init__.py" for folder in file.parents if root in folder.parents)
    return {each for each in above if each.is_file()}
