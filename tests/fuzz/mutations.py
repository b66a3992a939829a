"""Small damage to one file, in the terms of its format: bytes, lines of text, JSON. All of it follows from `random`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random

from tests.fuzz.json_places import Places, Span, places_of

NUMBERS = (
    0, 1, 2, 3, 7, 8, 16, 31, 32, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53,
    2**63 - 1, 2**63, 2**64 - 1,
)  # fmt: skip
NESTED = 5000  # more than any reader should follow
LONG = 20_000
NAMES = (
    "", " ", ".", "..", "../config.json", "../../../../etc/passwd", "/etc/passwd", "/dev/zero", "/proc/self/mem", "a/b",
    "a\\b", "model.safetensors", "model.safetensors/../x", "C:\\x", "file:///etc/passwd", "http://localhost/x",
    "nul\0byte", "\ud800", "\uffff", "\u202e", "é", "𝔘", "%s%n", "{0.__class__}", "__import__('os')", "$(id)", "\n",
    "\t", "<pad>", "[MASK]", "</s>", "▁", "(a+)+$", "([a-z._0-9]+)+!", "[", "\\",
)  # fmt: skip
LITERALS = (
    "null", "true", "false", "0", "1", "-1", "2", "3", "-0", "0.0", "1.5", "-1e300", "1e999", "-1e999", "1e-320", "NaN",
    "Infinity", "-Infinity", "[]", "{}", '""', '"x"', '"0"', '"1"', "[0]", "[null]", "[[]]", '{"a": 1}', '{"": {}}',
    "2147483647", "2147483648", "-2147483649", "4294967296", "9007199254740993", "9223372036854775807",
    "9223372036854775808", "-9223372036854775809", "18446744073709551616", "100000", "1000000000", "65536", "12", "16",
    "1e2", "16.0",
)  # fmt: skip
STRANGE = (b"\0" * 8, b"\xff" * 8, b"\xed\xa0\x80", b"\xc0\xaf", b"\xef\xbb\xbf", b"\r\n", b'"', b"\x80")
Change = Callable[[bytes, Random], bytes]


def change_bytes(content: bytes, random: Random) -> bytes:
    """One to four of the ways in which any file is damaged."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        content = random.choice(OF_BYTES)(content, random)
    return content


def _place(content: bytes, random: Random) -> int:
    """Anywhere, but the beginning of a file, which says what it is, is hit as often as the rest."""
    length = len(content)
    return random.randrange(min(64, length) if random.random() < 0.5 else length) if length else 0


def _flip(content: bytes, random: Random) -> bytes:
    if not content:
        return b"\0"
    place = _place(content, random)
    return content[:place] + bytes([content[place] ^ (1 << random.randrange(8))]) + content[place + 1 :]


def _set(content: bytes, random: Random) -> bytes:
    place = _place(content, random)
    return content[:place] + bytes([random.choice((0, 1, 0x7F, 0x80, 0xC3, 0xFF, 0x22, 0x7B))]) + content[place + 1 :]


def _number(content: bytes, random: Random) -> bytes:
    """A whole number of 2, 4 or 8 bytes, as lengths, offsets and sizes are."""
    width = random.choice((2, 4, 8))
    number = random.choice(NUMBERS) + random.choice((0, 0, -1, 1))
    place = _place(content, random) // random.choice((1, 4)) * random.choice((1, 4))
    packed = (number % 2 ** (8 * width)).to_bytes(width, random.choice(("little", "little", "big")))
    return content[:place] + packed + content[place + width :]


def _cut(content: bytes, random: Random) -> bytes:
    return content[: _place(content, random)]


def _remove(content: bytes, random: Random) -> bytes:
    place = _place(content, random)
    return content[:place] + content[place + random.choice((1, 2, 4, 8, 64)) :]


def _repeat(content: bytes, random: Random) -> bytes:
    place = _place(content, random)
    some = content[place : place + random.choice((1, 8, 64, 512))]
    return content[:place] + some * random.choice((2, 3, 20)) + content[place:]


def _splice(content: bytes, random: Random) -> bytes:
    """A piece from elsewhere in the file takes the place of another."""
    start, place = _place(content, random), _place(content, random)
    some = content[start : start + random.choice((1, 8, 64, 512))]
    return content[:place] + some + content[place + random.choice((0, len(some))) :]


def _insert(content: bytes, random: Random) -> bytes:
    place = _place(content, random)
    return content[:place] + random.choice(STRANGE) + content[place:]


OF_BYTES: tuple[Change, ...] = (_flip, _flip, _set, _number, _number, _cut, _remove, _repeat, _splice, _insert)


def change_lines(content: bytes, random: Random) -> bytes:
    """Lines left out, doubled, exchanged or emptied, words exchanged for others; now and then bytes."""
    if random.random() < 0.3:
        return change_bytes(content, random)
    lines = content.split(b"\n")
    place = random.randrange(len(lines))
    way = random.randrange(7)
    if way == 0:
        del lines[place]
    elif way == 1:
        lines.insert(place, lines[random.randrange(len(lines))])
    elif way == 2:
        lines[place] = random.choice((b"", b"\t", b" ", b"\0", b"x" * LONG, b'"', b"#", b"\xff\xfe"))
    elif way == 3:
        words = lines[place].split(b" ")
        words[random.randrange(len(words))] = _literal(random).encode("utf-8", "surrogatepass")
        lines[place] = b" ".join(words)
    elif way == 4:
        lines[place] = change_bytes(lines[place], random)
    elif way == 5:
        lines[place] = lines[place][::-1]
    else:
        name, equals, _ = lines[place].partition(b"=")
        lines[place] = name + (equals or b"\t") + _literal(random).encode("utf-8", "surrogatepass")
    return b"\n".join(lines)


@lru_cache(maxsize=4096)
def _places(content: bytes) -> Places:
    return places_of(content.decode())


def change_json(content: bytes, random: Random) -> bytes:
    """A valid JSON text with one to three parts exchanged, doubled, renamed or left out; now and then bytes."""
    if random.random() < 0.12:
        return change_bytes(content, random)
    places = _places(content)
    for _ in range(random.choice((0, 0, 0, 0, 1, 2))):
        try:
            places = places_of(_changed(places, random))
        except (AssertionError, IndexError, RecursionError):
            break  # what came of it is no JSON any more, and damaged enough
    return _changed(places, random).encode("utf-8", "surrogatepass")


def _changed(places: Places, random: Random) -> str:
    way = random.random()
    if way < 0.55 or not places.members:
        return places.with_text(_one(places.values, random), _instead(places, random))
    if way < 0.70:
        return _without(places, _one(places.members, random))
    if way < 0.80:  # twice, the second time perhaps with another value: of objects a doubled key
        span = _one(places.members, random)
        return places.with_text(span, f"{places.of(span)}, {places.of(span)}")
    if way < 0.90 and places.keys:
        return places.with_text(_one(places.keys, random), _name(places, random))
    span, other = _one(places.members, random), _one(places.members, random)
    return places.with_text(span, f"{places.of(span)}, {places.of(other)}")


def _one(spans: Sequence[Span], random: Random) -> Span:
    """Large documents are mostly lists of alike things: the first and the last few parts are taken as often as all."""
    if random.random() < 0.5:
        return random.choice(spans)
    few = random.choice((spans[:40], spans[-40:]))
    return random.choice(few)


def _instead(places: Places, random: Random) -> str:
    if random.random() < 0.2:
        return places.of(random.choice(places.values))
    return _literal(random)


def _literal(random: Random) -> str:
    way = random.random()
    if way < 0.6:
        return random.choice(LITERALS)
    if way < 0.75:
        return json.dumps(random.choice(NAMES), ensure_ascii=random.random() < 0.5)
    if way < 0.87:
        return str(random.choice(NUMBERS) * random.choice((1, 1, -1)) + random.choice((0, 1, -1)))
    if way < 0.92:
        return repr(random.choice((0.1, 1e-30, 1e30, 3.7)) * random.choice((1, -1)))
    if way < 0.94:
        return random.choice(("[" * NESTED + "]" * NESTED, '{"a":' * NESTED + "1" + "}" * NESTED, "[" * NESTED))
    if way < 0.96:
        return "9" * random.choice((400, 5000))  # past what a float holds, and past what Python reads as a number
    if way < 0.98:
        return json.dumps(random.choice("aé\0▁") * LONG)
    return random.choice(("[" + "0," * 300 + "0]", "tru", "'x'", "//", "1.", "+1", ".5", '"\\x"', '"\\ud800"', '"\n"'))


def _name(places: Places, random: Random) -> str:
    if random.random() < 0.5:
        return places.of(random.choice(places.keys))
    return json.dumps(random.choice(NAMES), ensure_ascii=random.random() < 0.5)


def _without(places: Places, span: Span) -> str:
    """A member gone, with the comma that stood behind or before it."""
    before, behind = places.text[: span.start].rstrip(), places.text[span.end :].lstrip()
    if behind.startswith(","):
        return before + behind[1:]
    return before.removesuffix(",") + behind


def change_json_lines(content: bytes, random: Random) -> bytes:
    if random.random() < 0.3:
        return change_lines(content, random)
    lines = content.split(b"\n")
    place = random.choice([number for number, line in enumerate(lines) if line.startswith(b"{")])
    lines[place] = change_json(lines[place], random)
    return b"\n".join(lines)
