"""Damage to safetensors files in their own terms: the length, the header's JSON, offsets, shapes and types."""

from __future__ import annotations

import json
import struct
from functools import lru_cache
from random import Random
from typing import Any

from tests.fuzz.mutations import NUMBERS, change_bytes, change_json

DTYPES = ("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "I16", "U16", "F16", "BF16", "I32", "F32", "F64", "I64", "U64",
          "F4", "C64", "", "f32", "F128")  # fmt: skip


@lru_cache(maxsize=256)
def parts_of(content: bytes) -> tuple[bytes, bytes]:
    """(header, numbers) of a valid file."""
    (length,) = struct.unpack("<Q", content[:8])
    return content[8 : 8 + length], content[8 + length :]


def joined(header: bytes, numbers: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", (len(header) if length is None else length) % 2**64) + header + numbers


def in_one_order(content: bytes) -> bytes:
    """The same file whatever the writer's chance: notes and tensors by their names."""
    header, numbers = parts_of(content)
    found = json.loads(header)
    notes = found.pop("__metadata__", None)
    ordered = {"__metadata__": dict(sorted(notes.items()))} if notes else {}
    text = json.dumps(ordered | dict(sorted(found.items())), separators=(",", ":"))
    text += " " * (-len(text) % 8)
    return joined(text.encode(), numbers)


def change_tensors(content: bytes, random: Random) -> bytes:
    way = random.random()
    if way < 0.12:
        return change_bytes(content, random)
    header, numbers = parts_of(content)
    if way < 0.20:
        length = len(header) + random.choice((0, 1, -1, 8, -8, len(numbers))) if random.random() < 0.5 else None
        return joined(header, numbers, random.choice(NUMBERS) if length is None else length)
    if way < 0.28:
        return joined(header, random.choice((numbers[: len(numbers) // 2], numbers + b"\0" * 64, b"", numbers[:-1])))
    if way < 0.33:
        padding = random.choice((b" ", b"\0", b"\n", b"x")) * random.choice((1, 8, 1000))
        return joined(random.choice((header + padding, padding + header)), numbers)
    if way < 0.70:
        changed = json.loads(header)
        for _ in range(random.choice((1, 1, 2))):
            _change_entry(changed, len(numbers), random)
        return joined(json.dumps(changed).encode(), numbers)
    return joined(change_json(header, random), numbers)


def _is_whole(entry: Any) -> bool:
    """Whether no earlier change made something else of it."""
    if not isinstance(entry, dict) or not {"shape", "data_offsets", "dtype"} <= entry.keys():
        return False
    shape, offsets = entry["shape"], entry["data_offsets"]
    return isinstance(shape, list) and isinstance(offsets, list) and [type(each) for each in offsets] == [int, int]


def _change_entry(header: dict[str, Any], size: int, random: Random) -> None:
    """One tensor's note: still JSON of the right form, mostly, and no longer true."""
    names = [each for each in header if each != "__metadata__"]
    if not names:
        return
    name = random.choice(names)
    entry = header[name]
    if not _is_whole(entry):
        return
    begin, end = entry["data_offsets"]
    shape = entry["shape"]
    some = random.choice((*NUMBERS, size, size + 1, begin, end, end - begin, -1, -8))
    way = random.randrange(12)
    if way == 0:
        entry["data_offsets"] = random.choice(([end, begin], [begin, some], [some, end], [some, some], [0, size]))
    elif way == 1:
        other = random.choice([each for each in header.values() if _is_whole(each)])
        entry["data_offsets"] = other["data_offsets"]
    elif way == 2:
        shift = random.choice((1, -1, 4, 8, end - begin, 2**63))
        entry["data_offsets"] = [begin + shift, end + shift]
    elif way == 3:
        entry["data_offsets"] = random.choice(([], [begin], [begin, end, end], None, "0,4", {"0": 0}, [0.0, 4.0]))
    elif way == 4 and shape:
        shape[random.randrange(len(shape))] = some
    elif way == 5:
        entry["shape"] = random.choice(([], [0], [1] * 70, [1] * 5000, [2**32, 2**32], [2**63, 2], [0, 2**63], None, 5))
    elif way == 6:
        entry["shape"] = shape[::-1] if random.random() < 0.5 else [*shape, 1]
    elif way == 7:
        entry["dtype"] = random.choice(DTYPES)
    elif way == 8:
        header[random.choice((name + "x", "", "../x", "__metadata__", "a" * 1000, "\ud800", name.upper()))] = entry
        header.pop(name, None)
    elif way == 9:
        del header[name]
    elif way == 10:
        header["__metadata__"] = random.choice(({"a": 1}, [], "x", {"format": "tf"}, {"x": "y" * 999}, {"a": {}}, None))
    else:
        header[name + ".copy"] = dict(entry)
