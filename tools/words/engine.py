"""How identifiers, phrases and lines are found and changed. Nothing here knows a word."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Collection, Iterator, Sequence

from tools.words.kinds import Found, R


# ---------------------------------------------------------------------------------------------------------------------
# The engine. Nothing below knows a word.
# ---------------------------------------------------------------------------------------------------------------------


class _Lines:
    """Offsets in characters of (line, column in bytes of UTF-8), as ast counts them."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines(keepends=True) or [""]
        self.first = [0]
        for line in self.lines:
            self.first.append(self.first[-1] + len(line))
        self.plain = [line.isascii() for line in self.lines]

    def at(self, line: int, column: int) -> int:
        if not self.plain[line - 1]:
            column = len(self.lines[line - 1].encode()[:column].decode())
        return self.first[line - 1] + column


def identifiers(text: str, names: Collection[str] | None = None) -> list[Found]:
    """All identifiers of a Python file with what they are, those in f-strings too; or some `names` of them."""
    tree = ast.parse(text)
    lines = _Lines(text)
    found: list[Found] = []
    in_strings: set[ast.AST] = set()
    formatted: list[tuple[ast.JoinedStr, str]] = []

    def said(node: ast.AST) -> str:
        try:
            return ast.unparse(node)
        except Exception:
            return ""

    def after(start: int, name: str) -> int:
        match = re.compile(rf"\b{re.escape(name)}\b").search(text, start)
        assert match is not None
        return match.start()

    def annotated(node: ast.AST | None, scope: str) -> None:
        """Names in annotations that are strings."""
        for each in ast.walk(node) if node is not None else ():
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                start = lines.at(each.lineno, each.col_offset)
                if text[start] in "'\"" and text[start + 1 : start + 1 + len(each.value)] == each.value:
                    try:
                        tree = ast.parse(each.value, mode="eval")
                    except SyntaxError:
                        continue
                    own = _Lines(each.value)
                    visit(tree, scope, True, lambda line, column, s=start + 1, o=own: s + o.at(line, column))

    def visit(node: ast.AST, scope: str, inside: bool, base: Callable[[int, int], int]) -> None:
        here = lambda n: base(n.lineno, n.col_offset)  # noqa: E731
        end = lambda n: base(n.end_lineno, n.end_col_offset)  # noqa: E731
        if isinstance(node, ast.JoinedStr):
            formatted.append((node, scope))
            return
        if isinstance(node, ast.Name):
            found.append(Found(here(node), node.id, "name", "", scope))
        elif isinstance(node, ast.Attribute):
            if names is None or node.attr in names:
                at = end(node) - len(node.attr)
                found.append(Found(at, node.attr, "attr", said(node.value), scope))
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg is not None and (names is None or keyword.arg in names):
                    found.append(Found(here(keyword), keyword.arg, "kw", said(node.func), scope))
        elif isinstance(node, ast.arg):
            found.append(Found(here(node), node.arg, "arg", "", scope))
        elif isinstance(node, ast.Global | ast.Nonlocal):
            at = here(node)
            for name in node.names:
                at = after(at, name)
                found.append(Found(at, name, "name", "", scope))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            at = here(node)
            if isinstance(node, ast.ImportFrom):
                at = after(at, "import")
            for alias in node.names:
                if isinstance(node, ast.ImportFrom) and alias.name != "*":
                    found.append(Found(here(alias), alias.name, "import", node.module or "", scope))
                if alias.asname:
                    found.append(Found(end(alias) - len(alias.asname), alias.asname, "name", "", scope))
        elif isinstance(node, ast.ExceptHandler) and node.name:
            pass
        elif isinstance(node, ast.MatchClass):
            for name in node.kwd_attrs:
                found.append(Found(after(here(node), name), name, "kw", said(node.cls), scope))
        if isinstance(node, ast.arg | ast.AnnAssign):
            annotated(node.annotation, scope)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            annotated(node.returns, scope)
        inner = scope
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            word = "class" if isinstance(node, ast.ClassDef) else "def"
            start = re.compile(rf"\b{word}\s+").search(text, here(node)).end()
            kind = "class" if isinstance(node, ast.ClassDef) else "def"
            found.append(Found(start, node.name, kind, "", scope))
            inner = f"{scope}.{node.name}" if scope else node.name
            if isinstance(node, ast.ClassDef):
                for each in node.body:
                    targets = (
                        [each.target] if isinstance(each, ast.AnnAssign) else each.targets if isinstance(each, ast.Assign) else []
                    )
                    for target in targets:
                        if isinstance(target, ast.Name):
                            found.append(Found(here(target), target.id, "field", "", inner))
                            in_strings.add(target)  # not once more as a name
        for child in ast.iter_child_nodes(node):
            if child in in_strings:
                continue
            deeper = inner
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and child in node.decorator_list:
                deeper = scope
            visit(child, deeper, inside, base)

    visit(tree, "", False, lines.at)
    # In Python 3.11 nodes in f-strings have no good places: their texts are parsed once more, token by token.
    spans = sorted({(lines.at(n.lineno, n.col_offset), lines.at(n.end_lineno, n.end_col_offset), s) for n, s in formatted})
    if spans:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type != tokenize.STRING or "f" not in re.match(r"[A-Za-z]*", token.string).group().lower():
                continue
            start = lines.first[token.start[0] - 1] + token.start[1]
            scope = next((s for a, b, s in spans if a <= start < b), "")
            for offset, expression in _fields(token.string):
                try:
                    inner_tree = ast.parse(f"({expression})", mode="eval")
                except SyntaxError:
                    continue
                inner_lines = _Lines(f"({expression})")
                origin = start + offset - 1
                visit(inner_tree, scope, True, lambda line, column, o=origin, i=inner_lines: o + i.at(line, column))
    return sorted(set(found))


def _fields(token: str) -> Iterator[tuple[int, str]]:
    """(offset, text) of each expression of an f-string's token, those in format specs too."""
    prefix = re.match(r"[A-Za-z]*", token).end()
    quote = 3 if token[prefix : prefix + 3] in ('"""', "'''") else 1
    yield from _fields_in(token, prefix + quote, len(token) - quote)


def _fields_in(token: str, at: int, end: int) -> Iterator[tuple[int, str]]:
    while at < end:
        sign = token[at]
        if sign == "{" and token[at : at + 2] == "{{":
            at += 2
            continue
        if sign != "{":
            at += 1
            continue
        depth, place, string = 0, at + 1, ""
        stop = None
        while place < end:
            c = token[place]
            if string:
                if c == string:
                    string = ""
            elif c in "'\"":
                string = c
            elif c in "([{":
                depth += 1
            elif c in ")]}" and depth:
                depth -= 1
            elif depth == 0 and (c in "}:" or (c == "!" and token[place + 1] != "=")):
                stop = place
                break
            place += 1
        if stop is None:
            return
        expression = token[at + 1 : stop]
        stripped = expression.rstrip()
        if stripped.endswith("=") and not stripped.endswith(("==", "!=", "<=", ">=")):
            expression = stripped[:-1]
        yield at + 1, expression
        if token[stop] == "!":
            stop += 2
        if token[stop] == ":":
            # The format spec: up to the closing brace, with fields of its own.
            depth, place = 0, stop + 1
            while place < end and not (token[place] == "}" and depth == 0):
                depth += {"{": 1, "}": -1}.get(token[place], 0)
                place += 1
            yield from _fields_in(token, stop + 1, place)
            stop = place
        at = stop + 1


def rename_identifiers(path: str, text: str, rules: Sequence[R]) -> str:
    by_name: dict[str, list[R]] = {}
    for rule in rules:
        if not rule.files or re.search(rule.files, path):
            by_name.setdefault(rule.old, []).append(rule)
    if not any(re.search(rf"\b{re.escape(name)}\b", text) for name in by_name):
        return text
    changes: dict[int, tuple[str, str]] = {}
    for found in identifiers(text, by_name):
        for rule in by_name.get(found.name, ()):
            if rule.fits(path, found):
                changes[found.start] = (found.name, rule.new)
                break
    for start in sorted(changes, reverse=True):
        old, new = changes[start]
        assert text.startswith(old, start), (path, start, old, text[start : start + 20])
        text = text[:start] + new + text[start + len(old) :]
    return text
