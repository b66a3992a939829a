"""Renames the private words of qkv to those of the field, all over a checkout.

    python -m tools.words [ROOT]           then ruff check --fix --select I,RUF022,RUF023, and ruff format
    python -m tools.words --lines [ROOT]   then ruff format once more: strings longer than a line are divided

It changes what it finds, and tells which of its patches no longer fit. It is to be run once, and goes then.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable
from pathlib import Path

from tools.words.engine import _Lines, _fields, rename_identifiers
from tools.words.kinds import R
from tools.words.patches import IMPORTS, NEW_FILES, PATCHES, SKIPPED
from tools.words.tables import EVERYWHERE, MODULES, MOVES, NO_OPTIONS, OPTIONS, PHRASES, RULES, STRINGS


# ---------------------------------------------------------------------------------------------------------------------
# Texts: words, phrases, and lines that became too long.
# ---------------------------------------------------------------------------------------------------------------------

WIDTH = 120
LONG_LINES = r"^recipes/.*_report\.py$"  # where ruff allows them
TEXTS = (".py", ".md", ".toml", ".cu", ".cuh", ".cpp", ".h", ".css", ".js", ".json", ".ipynb", "Makefile", "run")
BREAK = r"(?:[ \t]+|[ \t]*\n[ \t]*(?:#|//|\*)?[ \t]*)"


def compiled_phrases() -> list[tuple[re.Pattern[str], re.Pattern[str], str]]:
    found = []
    for files, phrase, instead in PHRASES:
        words = BREAK.join(re.escape(word) for word in phrase.split(" "))
        before = r"(?<![\w`.-])" if re.match(r"\w", phrase) else ""
        after = r"(?![\w`-]|=\w)" if re.search(r"\w$", phrase) else ""
        found.append((re.compile(files), re.compile(f"{before}{words}{after}"), instead))
    return found


_PHRASES: list[tuple[re.Pattern[str], re.Pattern[str], str]] = []


def rephrased(path: str, text: str) -> str:
    """All phrases replaced; a line break within one goes before it."""
    if not _PHRASES:
        _PHRASES.extend(compiled_phrases())

    for files, pattern, instead in _PHRASES:
        if files.search(path):

            def put(match: re.Match[str], instead: str = instead) -> str:
                broken = re.search(r"[ \t]*(\n[ \t]*(?:#|//|\*)?[ \t]*)", match[0])
                return instead if broken is None else f"{broken[1]}{instead}"

            text = pattern.sub(put, text)
    return re.sub(r"[ \t]+\n", "\n", text)


def in_zones(path: str, text: str, change: Callable[[str, str], str]) -> str:
    """`change` what people read of a file: all of a page, comments and strings of Python, comments of C."""
    if path.endswith((".md", ".json", ".toml", ".css", ".js", "Makefile", "run")):
        return change(path, text)
    if path.endswith((".cu", ".cuh", ".cpp", ".h")):
        return re.sub(r"//[^\n]*(?:\n[ \t]*//[^\n]*)*|/\*.*?\*/", lambda m: change(path, m[0]), text, flags=re.S)
    lines = _Lines(text)
    zones: list[tuple[int, int, bool]] = []  # (from, to, whether it is a comment with a line of its own)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        start = lines.first[token.start[0] - 1] + token.start[1]
        end = lines.first[token.end[0] - 1] + token.end[1]
        if token.type == tokenize.COMMENT:
            own = not token.line[: token.start[1]].strip()
            if own and zones and zones[-1][2] and not text[zones[-1][1] : start].strip():
                zones[-1] = (zones[-1][0], end, True)
            else:
                zones.append((start, end, own))
        elif token.type == tokenize.STRING:
            zones.append((start, end, False))
    for start, end, _ in reversed(zones):
        text = text[:start] + _changed(path, text[start:end], change) + text[end:]
    return text


def _changed(path: str, zone: str, change: Callable[[str, str], str]) -> str:
    """A comment or string changed; names alone, and what an f-string computes, stay."""
    if zone.startswith("#"):
        return change(path, zone)
    prefix = re.match(r"[A-Za-z]*", zone)[0]
    if re.fullmatch(r"['\"]+[\w-]*['\"]+", zone[len(prefix) :]):
        return zone
    if "f" not in prefix.lower():
        return change(path, zone)
    kept: list[str] = []
    out, at = "", 0
    for start, expression in _fields(zone):
        if start < at:
            continue
        out += zone[at:start] + f"\x00{len(kept)}\x00"
        kept.append(expression)
        at = start + len(expression)
    out = change(path, out + zone[at:])
    return re.sub(r"\x00(\d+)\x00", lambda match: kept[int(match[1])], out)


def rewrapped(path: str, text: str) -> str:
    """Comments and docstrings of Python whose lines became too long: what is too much goes to the next line."""
    if not any(len(line) > WIDTH for line in text.split("\n")):
        return text
    text = _comments_above(text)
    kinds = _prose_lines(text)
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        line, kind = lines[number], kinds[number]
        if len(line) <= WIDTH or kind is None:
            number += 1
            continue
        prefix = re.match(r"[ \t]*(?:# ?)?", line)[0]
        quotes = '"""' if kind == "docstring" and line.rstrip().endswith('"""') else ""
        cut = line.rfind(" ", len(prefix) + 1, WIDTH + 1)
        while cut > len(prefix) and (line[:cut].count("[") > line[:cut].count("]") or line[:cut].count("`") % 2):
            cut = line.rfind(" ", len(prefix) + 1, cut)
        if cut < 0:
            number += 1
            continue
        rest = line[cut + 1 :]
        lines[number] = line[:cut]
        following = lines[number + 1] if number + 1 < len(lines) else ""
        goes_on = (
            not quotes
            and number + 1 < len(lines)
            and kinds[number + 1] == kind
            and re.match(r"[ \t]*(?:# ?)?", following)[0] == prefix
            and following.strip(" #")
            and not re.match(r"[ \t]*(?:#[ \t]*)?([-*] |\d+\. |>>>|Shapes:|```|\"\"\")", following)
        )
        if goes_on:
            body = following[len(prefix) :]
            closing_alone = body.strip() == '"""'
            lines[number + 1] = f"{prefix}{rest}{body}" if closing_alone else f"{prefix}{rest} {body}"
        else:
            indent = prefix
            lines.insert(number + 1, f"{indent}{rest}")
            kinds.insert(number + 1, kind)
            if quotes:  # of a docstring of several lines they stand alone
                lines[number + 1] = lines[number + 1].rstrip()[:-3].rstrip()
                lines.insert(number + 2, f"{indent}{quotes}")
                kinds.insert(number + 2, kind)
        number += 1
    return "\n".join(lines)


def _comments_above(text: str) -> str:
    """Comments behind statements whose line became too long stand above them."""
    lines = text.split("\n")
    depth, above = 0, {}
    begins = {1: True}  # whether a line begins a statement
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
        if token.type in (tokenize.NL, tokenize.NEWLINE):
            begins[token.start[0] + 1] = depth == 0
        if token.type == tokenize.COMMENT and len(lines[token.start[0] - 1]) > WIDTH:
            code = lines[token.start[0] - 1][: token.start[1]].rstrip()
            said = token.string.lstrip("# ")
            if code and begins.get(token.start[0]) and not re.match(r"(noqa|type:|fmt:|pragma)", said) and depth == 0:
                above[token.start[0] - 1] = (code, f"{said[0].upper()}{said[1:]}{'' if said[-1] in '.:]' else '.'}")
    for number in sorted(above, reverse=True):
        code, said = above[number]
        lines[number : number + 1] = [f"{re.match(' *', code)[0]}# {said}", code]
    return "\n".join(lines)


def _prose_lines(text: str) -> list[str | None]:
    """For each line whether it is of a docstring, a comment with a line of its own, or neither."""
    lines = text.split("\n")
    kinds: list[str | None] = [None] * len(lines)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip():
            kinds[token.start[0] - 1] = "comment"
        elif token.type == tokenize.STRING and token.string.startswith(('"""', 'r"""')) and not token.line[: token.start[1]].strip():
            for line in range(token.start[0] - 1, token.end[0]):
                kinds[line] = "docstring"
    return kinds


def split_strings(text: str) -> str:
    """Strings within brackets whose line became too long are divided in two."""
    for _ in range(200):
        lines = text.split("\n")
        found = next(
            (n for n, line in enumerate(lines) if len(line) > WIDTH and n not in _hopeless), None
        )
        if found is None:
            break
        depth, cut = 0, None
        positions = _Lines(text)
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.OP:
                depth += (token.string in "([{") - (token.string in ")]}")
            if token.type == tokenize.STRING and token.start[0] == token.end[0] == found + 1 and depth and token.end[1] > 60:
                prefix = re.match(r"[A-Za-z]*", token.string)[0]
                quote = token.string[len(prefix)]
                if token.string[len(prefix) :].startswith(quote * 3):
                    continue
                start = positions.first[found] + token.start[1]
                body = token.string
                limit = min(WIDTH - 2 - token.start[1], len(body) - 2)
                place = body.rfind(" ", len(prefix) + 2, limit)
                while place > 0 and "f" in prefix.lower() and body[:place].count("{") != body[:place].count("}"):
                    place = body.rfind(" ", len(prefix) + 2, place)
                if place > 0:
                    parts = [body[: place + 1] + quote, prefix + quote + body[place + 1 :]]
                    if "f" in prefix.lower():  # a half without braces needs no f
                        parts = [each if "{" in each else each.replace("f", "", 1) if each[0] in "fF" else each for each in parts]
                    cut = (start, start + len(body), parts[0] + "\n" + " " * token.start[1] + parts[1])
        if cut is None:
            place = _last_comma(text, positions, found)
            if place is None:
                _hopeless.add(found)
                continue
            indent = re.match(r" *", lines[found])[0]
            text = text[:place] + "\n" + indent + text[place:].lstrip(" ")
            continue
        text = text[: cut[0]] + cut[2] + text[cut[1] :]
    _hopeless.clear()
    return text


_hopeless: set[int] = set()


def _last_comma(text: str, positions: _Lines, line: int) -> int | None:
    """Behind the last comma within brackets and within the width of a line."""
    depth, found = 0, None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
            if token.string == "," and depth and token.start[0] == line + 1 and token.end[1] <= WIDTH:
                found = positions.first[line] + token.end[1]
    return found


# ---------------------------------------------------------------------------------------------------------------------
# All of it.
# ---------------------------------------------------------------------------------------------------------------------


def main() -> int:
    given = [each for each in sys.argv[1:] if each != "--lines"]
    root = Path(given[0] if given else ".").resolve()
    names = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    files = [
        name
        for name in names.split("\0")
        if name.endswith(TEXTS)
        and name not in SKIPPED
        and not name.startswith("tools/words/")
        and (root / name).is_file()
        and not re.search(r"metrics\.jsonl$|^src/qkv/(data/embedded|weights/packaged)/|^tests/.*fixtures/", name)
        and (not name.endswith(".json") or name.startswith(("bench/results/", "docs/gpu")))
    ]
    if "--lines" in sys.argv:
        for name in files:
            if name.endswith(".py") and not re.search(LONG_LINES, name):
                before = (root / name).read_text(encoding="utf-8")
                text = split_strings(before)
                if text != before:
                    (root / name).write_text(text, encoding="utf-8")
        return 0
    everywhere = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, sorted(EVERYWHERE, key=len, reverse=True)))})(?!\w)")
    options = re.compile(rf"(?<![\w-])--({'|'.join(map(re.escape, sorted(OPTIONS, key=len, reverse=True)))})(?![\w-])")
    paths = _path_rules()
    changed = 0
    for name in files:
        before = text = (root / name).read_text(encoding="utf-8")
        python = name.endswith(".py")
        if python:
            text = rename_identifiers(name, text, [*module_rules(name), *RULES])
        text = everywhere.sub(lambda match: EVERYWHERE[match[1]], text)
        for pattern, old, new in STRINGS:
            if re.search(pattern, name):
                text = re.sub(old, new, text)
        if not re.search(NO_OPTIONS, name):
            text = options.sub(lambda match: f"--{OPTIONS[match[1]]}", text)
        for pattern, new in paths:
            text = pattern.sub(new, text)
        text = in_zones(name, text, rephrased)
        if python:
            text = rewrapped(name, text) if text != before else text
        if text != before:
            (root / name).write_text(text, encoding="utf-8")
            changed += 1
    for old, new in MOVES.items():
        if (root / old).exists():
            subprocess.run(["git", "mv", old, new], cwd=root, check=True)
        elif not (root / new).exists():
            print(f"MISSING {old}: it is neither there nor {new}")
    for name, text in NEW_FILES.items():
        (root / name).write_text(text, encoding="utf-8")
    words = Path(__file__).with_name("test_words.txt")
    if words.exists():
        (root / "tests/test_words.py").write_text(words.read_text(encoding="utf-8"), encoding="utf-8")
    for name, old, new in PATCHES:
        text = (root / name).read_text(encoding="utf-8")
        if new and new in text:
            continue
        if old not in text:
            print(f"PATCH of {name} finds no {old!r}")
            continue
        (root / name).write_text(text.replace(old, new, 1), encoding="utf-8")
    for name, module, imported in IMPORTS:
        text = (root / name).read_text(encoding="utf-8")
        if f"from {module} import {imported}" not in text:
            last = [match for match in re.finditer(r"^from qkv\.[^\n]*import (?:[^(\n]+|\([^)]*\))\n", text, flags=re.M)][-1]
            line = f"from {module} import {imported}\n"
            (root / name).write_text(text[: last.end()] + line + text[last.end() :], encoding="utf-8")
    print(f"{changed} files changed, {len(MOVES)} moved.")
    return 0


def module_rules(name: str) -> list[R]:
    found = []
    for (package, old, new), files in MODULES.items():
        if re.search(files, name):
            found.append(R(old, new, "import", on=re.escape(package)))
            if old != "write":  # which is given another name where it is imported
                found.append(R(old, new, "name"))
    return found


def _path_rules() -> list[tuple[re.Pattern[str], str]]:
    """Dotted names of modules, and paths with slashes, from the folder of a room on."""
    rules = []
    for old, new in MOVES.items():
        for cut in ("src/", "tests/", "src/qkv/"):
            if old.startswith(cut):
                a, b = (each[len(cut) :] for each in (old, new))
                rules.append((re.compile(rf"(?<![\w-]){re.escape(a)}(?!\w)"), b))
        if old.startswith("src/"):
            a, b = (each[4:-3].replace("/", ".") for each in (old, new))
            rules.append((re.compile(rf"(?<![\w.]){re.escape(a)}(?!\w)"), b))
    return rules


if __name__ == "__main__":
    sys.exit(main())
