"""Where the parts of a JSON text stand, so that one of them can be exchanged without writing the rest anew."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

SPACE = re.compile(r"[ \t\r\n]*")
SCALAR = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null')


@dataclass(frozen=True)
class Span:
    start: int
    end: int


@dataclass(frozen=True)
class Places:
    """Of one text: its values (objects and lists too), the keys of its objects, and its members with key and value."""

    text: str
    values: list[Span] = field(default_factory=list)
    keys: list[Span] = field(default_factory=list)
    members: list[Span] = field(default_factory=list)  # of objects: key to value; of lists: the element

    def of(self, span: Span) -> str:
        return self.text[span.start : span.end]

    def with_text(self, span: Span, new: str) -> str:
        return self.text[: span.start] + new + self.text[span.end :]


def places_of(text: str) -> Places:
    """The parts of a valid JSON text."""
    found = Places(text)
    _value(found, _skip(text, 0))
    return found


def _skip(text: str, place: int) -> int:
    match = SPACE.match(text, place)
    assert match is not None
    return match.end()


def _value(found: Places, start: int) -> int:
    text = found.text
    if text[start] in "{[":
        end = _members(found, start)
    else:
        match = SCALAR.match(text, start)
        assert match is not None, f"the seed is no JSON at {start}"
        end = match.end()
    found.values.append(Span(start, end))
    return end


def _members(found: Places, start: int) -> int:
    text, closing = found.text, "}" if found.text[start] == "{" else "]"
    place = _skip(text, start + 1)
    while text[place] != closing:
        first = place
        if closing == "}":
            match = SCALAR.match(text, place)
            assert match is not None
            found.keys.append(Span(place, match.end()))
            place = _skip(text, _skip(text, match.end()) + 1)
        place = _value(found, place)
        found.members.append(Span(first, place))
        place = _skip(text, place)
        if text[place] == ",":
            place = _skip(text, place + 1)
    return place + 1
