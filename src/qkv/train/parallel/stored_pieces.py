"""Tensors on disk in pieces, in one file or in many, and read back in other pieces.

A file of pieces is an ordinary safetensors file. Where a tensor in it is not a whole one, a note beside the tensors
says which box of which tensor it is. So what one process writes is the plain case: no piece, no note.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.files import checksum, opened_tensors, write_json, write_tensors
from qkv.train.parallel.pieces import Piece, Place, whole_piece

NOTE = "places"  # the text beside the tensors: {key: {"tensor": name, "shape": of the whole, "start": where it begins}}


def write_pieces(file: Path, pieces: Iterable[Piece]) -> None:
    """What this rank is to write of some tensors; pieces without numbers are left out."""
    written = [piece for piece in pieces if piece.is_whole or piece.tensor.numel()]
    places = {
        piece.key: {"tensor": piece.name, "shape": list(piece.shape), "start": list(piece.start)}
        for piece in written
        if not piece.is_whole
    }
    tensors = {piece.key: piece.tensor for piece in written}
    write_tensors(file, tensors, {NOTE: json.dumps(places)} if places else None)


def write_share(
    folder: Path, ending: str, tensors: Mapping[str, Iterable[Piece]], random: Mapping[str, Any]
) -> dict[str, str]:
    """The files of a rank, `model-00003.safetensors` and so on, and their checksums; a lone process has no ending."""
    for kind, pieces in tensors.items():
        write_pieces(folder / f"{kind}{ending}.safetensors", pieces)
    write_json(folder / f"random{ending}.json", random)
    names = [*(f"{kind}{ending}.safetensors" for kind in tensors), f"random{ending}.json"]
    return {name: checksum(folder / name) for name in names}


@dataclass(frozen=True)
class _Box:
    """A piece of a tensor in a file."""

    file: Path
    key: str
    start: Place
    size: Place


def _shared(start: Place, size: Sequence[int], other: Place, others: Sequence[int]) -> list[tuple[int, int]] | None:
    """(first, behind the last) in each dimension of what two boxes share; None: nothing."""
    shared = []
    for begin, length, another, another_length in zip(start, size, other, others, strict=True):
        low, high = max(begin, another), min(begin + length, another + another_length)
        if low >= high:
            return None
        shared.append((low, high))
    return shared


@dataclass(frozen=True)
class _Entry:
    """All that is stored of one tensor."""

    shape: Place
    dtype: torch.dtype
    boxes: list[_Box]

    def is_whole(self) -> bool:
        """Whether the boxes fill the tensor, and none lies over another: columns of boxes, one row after the other."""
        if sum(math.prod(box.size) for box in self.boxes) != math.prod(self.shape):
            return False
        if len(self.boxes) == 1 or not self.shape:
            return len(self.boxes) == 1
        columns: dict[tuple[Place, Place], list[tuple[int, int]]] = {}
        for box in self.boxes:
            columns.setdefault((box.start[1:], box.size[1:]), []).append((box.start[0], box.size[0]))
        for rows in columns.values():
            rows.sort()
            if any(first + count > then for (first, count), (then, _) in pairwise(rows)):
                return False
        return not any(_shared(*one, *other) is not None for one, other in combinations(columns, 2))


class StoredTensors(Mapping[str, Tensor]):
    """The tensors of some files by name. None is read before it is asked for, and no more of it than that."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.origin = files[0] if len(files) == 1 else files[0].parent
        self._entries: dict[str, _Entry] = {}
        for file in files:
            self._add(file)
        for name, entry in self._entries.items():
            if not entry.is_whole():
                raise QkvError(f"{self.origin} holds pieces of {name} that do not make it whole; one may be missing.")

    def _add(self, file: Path) -> None:
        with _reading(file) as opened:
            places = _places(file, (opened.metadata() or {}).get(NOTE))
            keys = set(opened.keys())
            if surplus := places.keys() - keys:
                raise QkvError(f"The file {file} tells of a piece that it does not hold: {min(surplus)}.")
            for key in sorted(keys):
                part = opened.get_slice(key)
                size = tuple(part.get_shape())
                dtype = part[0:0].dtype if size else opened.get_tensor(key).dtype
                name, shape, start = places.get(key, (key, size, (0,) * len(size)))
                ends = zip(start, size, shape, strict=True) if len(size) == len(shape) else [(1, 1, 1)]
                entry = self._entries.setdefault(name, _Entry(shape, dtype, []))
                if any(begin + length > most for begin, length, most in ends) or (entry.shape, entry.dtype) != (
                    shape,
                    dtype,
                ):
                    raise QkvError(f"The file {file} holds a piece of {name} that has no place in it.")
                entry.boxes.append(_Box(file, key, start, size))

    def __getitem__(self, name: str) -> Tensor:
        entry = self._entries[name]
        whole = torch.empty(entry.shape, dtype=entry.dtype)
        self.read_into([whole_piece(name, whole)])
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def shape(self, name: str) -> Place:
        return self._entries[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return self._entries[name].dtype

    def fill(self, pieces: Sequence[Piece]) -> None:
        """Copy into all that a model holds; names and shapes must agree exactly."""
        self.check(pieces)
        self.read_into(pieces)

    def check(self, pieces: Sequence[Piece]) -> None:
        """Refuse where these are not pieces of the same tensors."""
        own = {piece.name: piece for piece in pieces}
        missing, surplus = own.keys() - self.keys(), self.keys() - own.keys()
        if missing or surplus:
            side = "lacks" if missing else "holds"
            raise QkvError(
                f"{self.origin} {side} the tensor {min(missing or surplus)}, so it belongs to another model."
            )
        for name, piece in own.items():
            entry, dtype = self._entries[name], piece.tensor.dtype
            if entry.shape != piece.shape:
                raise QkvError(
                    f"{self.origin} holds {name} with shape {list(entry.shape)}, "
                    f"but this model has {list(piece.shape)}."
                )
            if entry.dtype.is_floating_point != dtype.is_floating_point:
                raise QkvError(f"{self.origin} holds {name} as {entry.dtype}, but this model has {dtype}.")

    @torch.no_grad()
    def read_into(self, pieces: Iterable[Piece]) -> None:
        """Copy into pieces what is theirs, each file being opened once."""
        wanted: dict[Path, list[tuple[Piece, _Box, list[tuple[int, int]]]]] = {}
        for piece in pieces:
            for box in self._entries[piece.name].boxes:
                shared = _shared(box.start, box.size, piece.start, piece.tensor.shape)
                if shared is not None:
                    wanted.setdefault(box.file, []).append((piece, box, shared))
        for file, reads in wanted.items():
            with _reading(file) as opened:
                for piece, box, shared in reads:
                    piece.tensor[_within(piece.start, shared)].copy_(_read(opened, box, shared))


@contextmanager
def _reading(file: Path) -> Iterator[Any]:
    with opened_tensors(file) as opened:
        try:
            yield opened
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # shapes that torch has no numbers for
            told = str(error).partition("\n")[0]
            raise QkvError(f"The file {file} is not a whole safetensors file ({told}).") from error


def _within(start: Place, shared: Sequence[tuple[int, int]]) -> tuple[slice, ...]:
    return tuple(slice(low - begin, high - begin) for begin, (low, high) in zip(start, shared, strict=True))


def _read(opened: Any, box: _Box, shared: Sequence[tuple[int, int]]) -> Tensor:
    if tuple(high - low for low, high in shared) == box.size:
        tensor: Tensor = opened.get_tensor(box.key)
    else:
        tensor = opened.get_slice(box.key)[_within(box.start, shared)]
    return tensor


def _places(file: Path, note: str | None) -> dict[str, tuple[str, Place, Place]]:
    """{key: (tensor, shape of the whole, where the piece begins)}."""
    try:
        told = json.loads(note or "{}")
        found = {key: (each["tensor"], tuple(each["shape"]), tuple(each["start"])) for key, each in told.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise QkvError(f"The file {file} does not say where its pieces belong.") from error
    for name, shape, start in found.values():
        numbers = [*shape, *start]
        if not isinstance(name, str) or len(shape) != len(start) or not all(_is_count(each) for each in numbers):
            raise QkvError(f"The file {file} does not say where its pieces belong.")
    return found


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62
