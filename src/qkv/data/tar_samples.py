"""Tar shards as WebDataset has them: members that follow each other and share a name up to its first dot are a sample.

The archive is read as a stream from its beginning, nothing is unpacked to disk, and only members that are text are read
at all: `.json`, an object whose keys are columns, and `.txt`, the column `text`.
"""

import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from qkv.data.record import Record
from qkv.errors import QkvError

TEXT, OBJECT = "txt", "json"
NEITHER = "the sample {} holds neither a .txt nor a .json member"


class _WholeHeader(tarfile.TarInfo):
    """A header that raises where it is damaged; the module would take that for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_WholeHeader":
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):  # the block of zeros that ends an archive
                raise
            raise tarfile.ReadError(f"{error or 'it is cut short'}") from error


def read_tar(stream: BinaryIO, file: str, names: Sequence[str] | None) -> Iterator[Record]:
    """The samples of a tar shard, numbered from 1."""
    if names is not None:
        raise QkvError(
            f"{file} is a tar shard, which names its own columns: give no --names (in Python, names=) for it."
        )
    number, key = 0, None
    members: dict[str, bytes | str] = {}  # by what follows the first dot: the content, or why there is none
    try:
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_WholeHeader) as archive:
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # the module would keep them all
                if not member.isreg():
                    continue
                path = PurePosixPath(member.name)
                stem, _, ending = path.name.partition(".")
                if (path.parent, stem) != key:
                    if key is not None:
                        yield sample(number, key[1], members)
                    number, key, members = number + 1, (path.parent, stem), {}
                if ending.lower() in (TEXT, OBJECT):
                    members[ending.lower()] = content_of(archive, member)
            if key is not None:
                yield sample(number, key[1], members)
    except (tarfile.TarError, ValueError, RecursionError) as error:
        raise QkvError(f"{file} is not a whole tar file: {error or 'it is cut short'}.") from error


def content_of(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | str:
    if member.issparse():  # a few bytes could stand for terabytes of zeros
        return f"the member {member.name} is stored with holes"
    opened = archive.extractfile(member)
    assert opened is not None  # only what is no regular file has no content
    with opened:
        return opened.read()


def sample(number: int, key: str, members: dict[str, bytes | str]) -> Record:
    """The columns of one sample, or the reason that there are none."""
    values: dict[str, Any] = {}
    for ending in (OBJECT, TEXT):
        content = members.get(ending)
        if content is None:
            continue
        if isinstance(content, str):
            return Record(number, reason=content)
        try:
            text = content.decode("utf-8-sig")
            found = {"text": text} if ending == TEXT else json.loads(text)
        except UnicodeDecodeError:
            return Record(number, reason=f"the member {key}.{ending} is not valid UTF-8")
        except (ValueError, RecursionError) as error:
            return Record(number, reason=f"the member {key}.{ending} is invalid JSON ({error})")
        if not isinstance(found, dict):
            return Record(
                number, reason=f"the member {key}.{ending} holds a JSON {type(found).__name__}, not an object"
            )
        values |= found
    return Record(number, values) if members else Record(number, reason=NEITHER.format(key))
