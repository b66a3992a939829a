"""A small corpus in files of every kind that is read from disk in parts, and the tokenised shards made of one."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tarfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path

import pyarrow
from pyarrow import parquet

from qkv.data.sources import sources_of
from qkv.data.token_files import CHECKSUM, UNKNOWN
from qkv.data.token_folder import write_list
from qkv.data.token_shards import TokenShards
from qkv.data.tokenizer import TextTokenizer
from tests.fuzz.folders import Content, Seed, seed_of

TEXTS = [f"Line {number} of a text: Größe, {number * 7}." for number in range(12)]
LINES = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in TEXTS).encode()


def corpora(folder: Path) -> Iterator[Seed]:
    table = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist([{"text": text} for text in TEXTS]), table, row_group_size=5)
    contents = {
        "a.jsonl": LINES,
        "a.txt": "\n\n".join(TEXTS).encode(),
        "a.tsv": ("text\n" + "\n".join(TEXTS)).encode(),
        "a.parquet": table.getvalue(),
        "a.tar": _tar(),
    }
    for name, content in contents.items():
        place = folder / name.replace(".", "-")
        place.mkdir()
        (place / name).write_bytes(content)
        yield seed_of(place, place.name)


def _tar() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for number, text in enumerate(TEXTS[:4]):
            for ending, content in {"txt": text.encode(), "json": b'{"label": 1}', "png": b"\0"}.items():
                member = tarfile.TarInfo(f"part/{number}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def token_shards(folder: Path) -> Iterator[Seed]:
    (folder / "text.jsonl").write_bytes(LINES)
    tokenizer = TextTokenizer.train("characters", TEXTS)
    shards = TokenShards(sources_of(folder / "text.jsonl", shard_bytes=200), tokenizer, folder / "tokens")
    shards.prepare()
    write_list(shards)
    files = {file.name: file.read_bytes() for file in sorted((folder / "tokens").iterdir()) if file.suffix != ".lock"}
    yield Seed("tokens", files, tuple(files))


def mend_tokens(files: MutableMapping[str, Content]) -> None:
    """Let the checksum in a file of tokens agree with the rest, as one who edits it on purpose would."""
    for name, content in files.items():
        if not name.endswith(".safetensors") or not isinstance(content, bytes) or len(content) < 8:
            continue
        (length,) = struct.unpack("<Q", content[:8])
        try:
            said = json.loads(content[8 : 8 + length])["__metadata__"][CHECKSUM].encode()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            continue
        if len(said) == len(UNKNOWN) and said in content:
            blank = content.replace(said, UNKNOWN.encode(), 1)
            files[name] = content.replace(said, hashlib.sha256(blank).hexdigest().encode(), 1)
