"""One file of tokenised documents: written as they come, read by memory map, and never trusted unseen.

It is a safetensors file of `offsets` [n+1] and `bytes` [n] (int64) and of all `ids` in a row (uint16 where the
vocabulary allows it, else int32), with notes in its header. Among them is a checksum of the whole file, in which it
counts itself as zeros: so a byte that changes anywhere is found.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from qkv.data.documents import Documents
from qkv.data.token_rows import Ints, TokenRows, offsets_of
from qkv.errors import QkvError
from qkv.files import replacing

UNKNOWN = "0" * 64  # stands where the checksum will
CHECKSUM = "checksum"
LONGEST_HEADER = 1 << 20  # bytes; the notes are short
KINDS: dict[str, Any] = {"U16": np.dtype("<u2"), "I32": np.dtype("<i4"), "I64": np.dtype("<i8")}
BLOCK = 1 << 18


class DamagedTokens(QkvError):
    """A file that is not what was written, or not what was asked for."""


@dataclass(frozen=True)
class TokenFile:
    """Documents whose ids stay on disk, and the notes beside them."""

    path: Path
    documents: Documents
    notes: dict[str, str]


@dataclass
class Gathered:
    """Documents on their way into a file: ids on disk, lengths in memory."""

    stream: BinaryIO
    kind: str
    lengths: list[Ints]
    bytes: list[Ints]

    def add(self, rows: list[list[int]], bytes: list[int]) -> int:
        """Returns the number of tokens that came along."""
        tokens = TokenRows.from_lists(rows, 0)
        self.stream.write(tokens.ids.astype(KINDS[self.kind]).tobytes())
        self.lengths.append(tokens.lengths)
        self.bytes.append(np.array(bytes, np.int64))
        return len(tokens.ids)


def kind_for(vocabulary: int) -> str:
    return "U16" if vocabulary <= 1 << 16 else "I32"


@contextmanager
def gathering(folder: Path, vocabulary: int) -> Iterator[Gathered]:
    """Somewhere for ids to wait: a file without a name, which is gone with the process."""
    with tempfile.TemporaryFile(dir=folder) as stream:
        yield Gathered(stream, kind_for(vocabulary), [], [])


def write_token_file(file: Path, gathered: Gathered, notes: Mapping[str, str]) -> None:
    """Put the documents in place, all at once."""
    nothing = np.zeros(0, np.int64)
    offsets = offsets_of(np.concatenate([nothing, *gathered.lengths]))
    lengths = np.concatenate([nothing, *gathered.bytes])
    tables = {"offsets": offsets.astype("<i8"), "bytes": lengths.astype("<i8")}
    header: dict[str, Any] = {"__metadata__": {CHECKSUM: UNKNOWN, **notes}}
    end = 0
    for name, kind, count in (
        *((name, "I64", len(table)) for name, table in tables.items()),
        ("ids", gathered.kind, int(offsets[-1])),
    ):
        begin, end = end, end + count * KINDS[kind].itemsize
        header[name] = {"dtype": kind, "shape": [count], "data_offsets": [begin, end]}
    written = json.dumps(header, ensure_ascii=True).encode()
    written += b" " * (-len(written) % 8)
    with replacing(file) as passing, passing.open("w+b") as stream:
        stream.write(len(written).to_bytes(8, "little") + written)
        for table in tables.values():
            stream.write(table.tobytes())
        gathered.stream.seek(0)
        shutil.copyfileobj(gathered.stream, stream, BLOCK)
        stream.seek(0)
        place = 8 + written.index(UNKNOWN.encode())
        found = digest_of(stream, place)
        stream.seek(place)
        stream.write(found.encode())


def digest_of(stream: BinaryIO, place: int) -> str:
    """The checksum of a stream from here on, in which the checksum at `place` counts as zeros."""
    digest = hashlib.sha256()
    digest.update(stream.read(place))
    stream.read(len(UNKNOWN))
    digest.update(UNKNOWN.encode())
    while block := stream.read(BLOCK):
        digest.update(block)
    return digest.hexdigest()


def open_token_file(file: Path, *, vocabulary: int, verify: bool = True) -> TokenFile:
    """The documents of a file, mapped into memory; raises `DamagedTokens` with the reason where it is not whole.

    To verify, all of the file is read once. Ids at or above `vocabulary` are damage too.
    """
    if not file.is_file() and file.exists():
        raise DamagedTokens(f"{file} is no file.")
    try:
        with file.open("rb") as stream:
            header, begin = _header(stream)
            if verify:
                _verify(stream, begin, header)
            stream.seek(0, 2)
            arrays = _arrays(file, header, begin, stream.tell())
    except OSError as error:
        raise DamagedTokens(f"{file} cannot be read ({error.strerror or error}).") from error
    except _Damage as damage:
        raise DamagedTokens(f"{file} {damage}.") from damage
    tokens = TokenRows(arrays["ids"], arrays["offsets"], 0)
    if verify:
        _check(file, tokens, arrays["bytes"], vocabulary)
    return TokenFile(file, Documents(tokens, arrays["bytes"]), header["__metadata__"])


class _Damage(Exception):
    """The rest of a sentence that begins with the file's name."""


def _header(stream: BinaryIO) -> tuple[dict[str, Any], int]:
    """What a file says of itself, and where its data begins."""
    length = int.from_bytes(stream.read(8), "little")
    if not 0 < length <= LONGEST_HEADER:
        raise _Damage("is no file of tokens")
    content = stream.read(length)
    try:
        header = json.loads(content.decode())
    except (ValueError, RecursionError):
        raise _Damage("is cut short or edited: its header is no JSON") from None
    notes = header.get("__metadata__") if isinstance(header, dict) else None
    if not isinstance(notes, dict) or not all(isinstance(note, str) for note in notes.values()):
        raise _Damage("is no file of tokens: it has no notes")
    return header, 8 + length


def _verify(stream: BinaryIO, begin: int, header: dict[str, Any]) -> None:
    stream.seek(0)
    said = header["__metadata__"].get(CHECKSUM, "").encode(errors="replace")
    place = stream.read(begin).find(said)
    if len(said) != len(UNKNOWN) or place < 0:
        raise _Damage("is no file of tokens: it has no checksum")
    stream.seek(0)
    if digest_of(stream, place) != said.decode():
        raise _Damage("is cut short or edited: its checksum is wrong")


def _arrays(file: Path, header: dict[str, Any], begin: int, size: int) -> dict[str, NDArray[Any]]:
    wanted = {"offsets": ("I64",), "bytes": ("I64",), "ids": ("U16", "I32")}
    if header.keys() != {"__metadata__", *wanted}:
        raise _Damage("is no file of tokens: it holds something else")
    arrays: dict[str, NDArray[Any]] = {}
    end = 0
    for name, kinds in wanted.items():
        match header[name]:
            case {"dtype": str(kind), "shape": [int(count)], "data_offsets": [int(first), int(last)]}:
                if kind not in kinds or count < 0 or first != end or last - first != count * KINDS[kind].itemsize:
                    raise _Damage(f"is no file of tokens: its {name} are not where they should be")
            case _:
                raise _Damage(f"is no file of tokens: it does not say where its {name} are")
        end = last
        if begin + end > size:
            raise _Damage("is cut short")
        mapped = np.memmap(file, KINDS[kind], "r", begin + first, (count,)) if count else np.zeros(0, KINDS[kind])
        arrays[name] = np.asarray(mapped)
    if begin + end != size:
        raise _Damage("is longer than it says")
    return arrays


def _check(file: Path, tokens: TokenRows, bytes: Ints, vocabulary: int) -> None:
    """What a checksum does not tell: that the numbers can be used."""
    offsets = tokens.offsets
    sound = len(offsets) == len(bytes) + 1 and offsets[0] == 0 and offsets[-1] == len(tokens.ids)
    if not sound or (np.diff(offsets) < 0).any() or (bytes < 0).any():
        raise DamagedTokens(f"{file} is no file of tokens: its documents do not fit its ids.")
    for first in range(0, len(tokens.ids), BLOCK):
        some = tokens.ids[first : first + BLOCK]
        if some.min() < 0 or some.max() >= vocabulary:
            raise DamagedTokens(f"{file} holds ids that are not in a vocabulary of {vocabulary} tokens.")
