"""What a rename of identifiers is, and what it is compared with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple




class Found(NamedTuple):
    """An identifier in a Python file."""

    start: int
    name: str
    kind: str
    on: str
    scope: str


@dataclass(frozen=True)
class R:
    """A rename of identifiers in Python files.

    `kinds`: some of name, attr, kw, arg, def, class, field, import. `on`: what must match whole: the receiver of an
    attribute or the callee of a keyword, as text. `scope`: a regular expression for the start of the dotted path of
    enclosing classes and functions. `files`: a regular expression for the path.
    """

    old: str
    new: str
    kinds: str = "name attr kw arg def class field import"
    files: str = ""
    on: str = ""
    scope: str = ""

    def fits(self, path: str, found: Found) -> bool:
        return (
            found.kind in self.kinds.split()
            and (not self.files or re.search(self.files, path) is not None)
            and (not self.scope or re.match(self.scope, found.scope) is not None)
            and (not self.on or found.kind not in ("attr", "kw", "import") or re.fullmatch(self.on, found.on) is not None)
        )


