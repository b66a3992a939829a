"""GGUF, the single-file format of llama.cpp: named metadata, then tensors, many of them in blocks of few bits.

    magic "GGUF" | version | number of tensors | number of metadata entries | entries | tensor notes | padding | tensors

The file is a stranger's: every length is checked against the bytes that are there before anything is read or allocated,
and tensors may not share bytes, so what the file unpacks to stays in proportion to its size. Tensors are decoded one by
one, when asked for.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.weights.blocks import DTYPES, VALUES_IN_BLOCK, values_of

VERSIONS = (2, 3)
LARGEST_HEADER = 2**27  # bytes of metadata and notes; vocabularies of a quarter million tokens take 2^24
DEEPEST_ARRAY = 4  # arrays of arrays of arrays are no metadata
MOST_DIMENSIONS = 4
LONGEST_NAME = 1024  # bytes
LARGEST_ALIGNMENT = 2**16

# The kinds of metadata values by their number: how one is packed.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
BOOLEAN = 7
SMALLEST_BYTES = {number: struct.calcsize(f"<{code}") for number, code in SCALARS.items()} | {STRING: 8, ARRAY: 12}

# The kinds of tensors by their number; an error can name also those that cannot be read.
TENSOR_KINDS = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
# Numbers that stand one by one keep their type. numpy has no bfloat16, so its bits travel as whole numbers.
PLAIN: dict[str, tuple[str, torch.dtype]] = {
    "F64": ("<f8", torch.float64),
    "F32": ("<f4", torch.float32),
    "F16": ("<f2", torch.float16),
    "BF16": ("<i2", torch.bfloat16),
    "I64": ("<i8", torch.int64),
    "I32": ("<i4", torch.int32),
    "I16": ("<i2", torch.int16),
    "I8": ("<i1", torch.int8),
}
READABLE = (*PLAIN, *DTYPES)


@dataclass(frozen=True)
class TensorNote:
    """What the file says about a tensor before the tensors come."""

    name: str
    shape: tuple[int, ...]  # rows first, as torch counts; the file counts the other way
    kind: str
    start: int  # bytes from the start of the file
    size: int | None  # bytes; None for a kind that cannot be read


class GgufTensors(Mapping[str, Tensor]):
    """The tensors by name. Asking for one decodes it: blocks to float32, plain numbers to their own type."""

    def __init__(self, path: Path, content: npt.NDArray[np.uint8], notes: Mapping[str, TensorNote]) -> None:
        self.path, self.content, self.notes = path, content, notes

    def __getitem__(self, name: str) -> Tensor:
        note = self.notes[name]
        if note.size is None:
            raise QkvError(
                f"The tensor {name} of {self.path} is stored as {note.kind}, which is not read here; "
                f"kinds that are: {', '.join(READABLE)}."
            )
        data = self.content[note.start : note.start + note.size]
        if note.kind in PLAIN:
            on_disk, dtype = PLAIN[note.kind]
            numbers = data.view(on_disk).astype(np.dtype(on_disk).newbyteorder("="))
            return torch.from_numpy(numbers).view(dtype).reshape(note.shape)
        return torch.from_numpy(values_of(note.kind, data)).reshape(note.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.notes)

    def __len__(self) -> int:
        return len(self.notes)


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file: `metadata` as Python values (arrays as lists), `notes` and `tensors` by tensor name."""

    path: Path
    version: int
    metadata: dict[str, Any]
    notes: dict[str, TensorNote]
    tensors: GgufTensors


def read_gguf(path: Path | str) -> GgufFile:
    """Read metadata and notes, check that every tensor is there; the tensors are decoded when they are asked for."""
    path = Path(path)
    reader = _Reader(path, _map_file(path))
    if bytes(reader.take(4, "the magic bytes")) != b"GGUF":
        raise QkvError(f'{path} is not a GGUF file: one starts with the letters "GGUF".')
    version = reader.scalar("I", "the version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "big"), "little")
        what = "the byte order of large machines" if swapped in VERSIONS else f"version {version}"
        raise QkvError(f"{path} is a GGUF file of {what}; read here are versions 2 and 3, lowest byte first.")
    tensor_count = reader.count(24, "tensors")
    entry_count = reader.count(12, "metadata entries")
    metadata: dict[str, Any] = {}
    for _ in range(entry_count):
        key = reader.name("a metadata entry")
        if key in metadata:
            raise QkvError(f"{path} gives the metadata entry {key} twice.")
        metadata[key] = reader.value(reader.scalar("I", f"the kind of {key}"), key)
    notes = _read_notes(reader, tensor_count, _alignment(path, metadata))
    return GgufFile(path, version, metadata, notes, GgufTensors(path, reader.content, notes))


def _map_file(path: Path) -> npt.NDArray[np.uint8]:
    if not path.is_file():
        raise QkvError(f"There is no file {path}: give a GGUF file.")
    try:
        if path.stat().st_size == 0:
            raise QkvError(f"{path} is empty; a GGUF file is not.")
        return np.asarray(np.memmap(path, np.uint8, mode="r"))
    except OSError as error:
        raise QkvError(f"Cannot read {path}: {(error.strerror or str(error)).lower()}.") from error


def _alignment(path: Path, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= LARGEST_ALIGNMENT or alignment & (alignment - 1):
        raise QkvError(f"{path} wants its tensors aligned to {alignment!r:.40} bytes; it should be a power of two.")
    return alignment


def _read_notes(reader: _Reader, count: int, alignment: int) -> dict[str, TensorNote]:
    found: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(count):
        name = reader.name("a tensor")
        if name in found:
            raise QkvError(f"{reader.path} holds the tensor {name} twice.")
        dimensions = reader.scalar("I", f"the number of dimensions of {name}")
        if dimensions > MOST_DIMENSIONS:
            raise QkvError(f"{reader.path} gives the tensor {name} {dimensions} dimensions; a tensor has at most four.")
        shape = tuple(reader.scalar("Q", f"the shape of {name}") for _ in range(dimensions))[::-1]
        if 0 in shape:
            raise QkvError(f"{reader.path} gives the tensor {name} the shape {list(shape)}, which holds nothing.")
        found[name] = (shape, reader.scalar("I", f"the kind of {name}"), reader.scalar("Q", f"the place of {name}"))
    start = -(-reader.place // alignment) * alignment
    notes: dict[str, TensorNote] = {}
    for name, (shape, number, offset) in found.items():
        kind = TENSOR_KINDS.get(number, f"kind {number}")
        if offset % alignment:
            raise QkvError(f"{reader.path} places the tensor {name} at {offset}, which is not aligned to {alignment}.")
        notes[name] = TensorNote(name, shape, kind, start + offset, _bytes_of(reader.path, name, shape, kind))
    _check_places(reader.path, notes, len(reader.content))
    return notes


def _bytes_of(path: Path, name: str, shape: tuple[int, ...], kind: str) -> int | None:
    if kind in PLAIN:
        return math.prod(shape) * np.dtype(PLAIN[kind][0]).itemsize
    if kind not in DTYPES:
        return None
    in_block, row = VALUES_IN_BLOCK[kind], shape[-1] if shape else 1
    if row % in_block:
        raise QkvError(
            f"{path} stores rows of {row} of the tensor {name} as {kind}, which comes in blocks of {in_block}."
        )
    return math.prod(shape) // in_block * DTYPES[kind].itemsize


def _check_places(path: Path, notes: Mapping[str, TensorNote], length: int) -> None:
    """Every tensor lies inside the file, and none shares bytes with another."""
    end = 0
    for note in sorted(notes.values(), key=lambda note: (note.start, note.size or 0)):
        if note.start + (note.size or 0) > length:
            raise QkvError(
                f"{path} is cut short or lies: the tensor {note.name} of shape {list(note.shape)} in {note.kind} "
                f"would end after the file's {length:,} bytes."
            )
        if note.size and note.start < end:
            raise QkvError(f"{path} places the tensor {note.name} on bytes that belong to another one.")
        end = max(end, note.start + (note.size or 0))


class _Reader:
    """A place in the header that moves on; it never passes the end."""

    def __init__(self, path: Path, content: npt.NDArray[np.uint8]) -> None:
        self.path, self.content, self.place = path, content, 0
        self.header = content.data[:LARGEST_HEADER]

    @property
    def left(self) -> int:
        return len(self.header) - self.place

    def take(self, size: int, what: str) -> memoryview:
        if size > self.left:
            raise QkvError(f"{self.path} is not a whole GGUF file: it should hold {what} at byte {self.place:,}.")
        self.place += size
        return self.header[self.place - size : self.place]

    def scalar(self, code: str, what: str) -> Any:
        (value,) = struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}"), what))
        return value

    def count(self, smallest: int, what: str) -> int:
        """A number of things that take at least `smallest` bytes each, all of which must still come."""
        count: int = self.scalar("Q", f"the number of {what}")
        if count * smallest > self.left:
            raise QkvError(
                f"{self.path} is cut short or lies: it announces {count:,} {what}, which would not fit in it."
            )
        return count

    def string(self, what: str) -> str:
        text = bytes(self.take(self.count(1, f"bytes of {what}"), what))
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise QkvError(f"{self.path} spells {what} with bytes that are not UTF-8.") from error

    def name(self, what: str) -> str:
        name = self.string(f"the name of {what}")
        if not name.isprintable() or len(name) > LONGEST_NAME:
            raise QkvError(f"{self.path} gives {what} a name that is too long or cannot be printed.")
        return name

    def value(self, number: int, key: str, depth: int = 0) -> Any:
        if number in SCALARS:
            return self.scalar(SCALARS[number], key)
        if number == STRING:
            return self.string(key)
        if number != ARRAY:
            raise QkvError(f"{self.path} gives {key} a value of the unknown kind {number}.")
        if depth == DEEPEST_ARRAY:
            raise QkvError(f"{self.path} nests more than {DEEPEST_ARRAY} arrays in {key}.")
        inner = self.scalar("I", f"the kind of the values of {key}")
        if inner not in SMALLEST_BYTES:
            raise QkvError(f"{self.path} gives {key} values of the unknown kind {inner}.")
        count = self.count(SMALLEST_BYTES[inner], f"values of {key}")
        if inner in SCALARS:
            numbers = np.frombuffer(self.take(count * SMALLEST_BYTES[inner], key), f"<{SCALARS[inner]}")
            return (numbers != 0 if inner == BOOLEAN else numbers).tolist()
        if inner == STRING:
            return self.strings(count, key)
        return [self.value(inner, key, depth + 1) for _ in range(count)]

    def strings(self, count: int, key: str) -> list[str]:
        """Many strings, such as a vocabulary: what `string` does, in a tight loop."""
        unpack, texts, place, end = struct.Struct("<Q").unpack_from, [], self.place, len(self.header)
        try:
            for _ in range(count):
                (size,) = unpack(self.header, place)
                if size > end - place - 8:
                    raise QkvError(f"{self.path} is cut short or lies: a text of {key} would end after the header.")
                place += 8 + size
                texts.append(str(self.header[place - size : place], "utf-8"))
        except UnicodeDecodeError as error:
            raise QkvError(f"{self.path} spells a text of {key} with bytes that are not UTF-8.") from error
        except struct.error as error:
            raise QkvError(f"{self.path} is not a whole GGUF file: it ends within the texts of {key}.") from error
        self.place = place
        return texts
