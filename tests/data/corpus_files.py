"""One corpus in every form it can be stored in, for tests of sources and of tokenised shards."""

import csv
import gzip
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

from qkv.data.token_shards import TokenShards

TEXTS = [f"Text {number}: the {word} sat on the mat, “{word}” – {'ü' * (number % 7)}\nand went." for number, word in
         enumerate(["cat", "dog", "hen", "owl", "fox"] * 9)]  # fmt: skip


def jsonl(folder: Path, texts: Sequence[str]) -> Path:
    file = folder / "corpus.jsonl"
    file.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)), "utf-8")
    return file


def jsonl_gz(folder: Path, texts: Sequence[str]) -> Path:
    file = folder / "corpus.jsonl.gz"
    file.write_bytes(gzip.compress(jsonl(folder, texts).read_bytes()))
    return file


def tsv(folder: Path, texts: Sequence[str]) -> Path:
    file = folder / "corpus.tsv"
    file.write_text("id\ttext\n" + "".join(f"{i}\t{' '.join(text.split())}\n" for i, text in enumerate(texts)), "utf-8")
    return file


def csv_file(folder: Path, texts: Sequence[str]) -> Path:
    file = folder / "corpus.csv"
    with file.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("id", "text"), *enumerate(texts)])
    return file


def plain(folder: Path, texts: Sequence[str]) -> Path:
    file = folder / "corpus.txt"
    file.write_text("\n\n".join(texts), "utf-8")
    return file


def parquet(folder: Path, texts: Sequence[str]) -> Path:
    import pyarrow
    from pyarrow import parquet

    file = folder / "corpus.parquet"
    table = pyarrow.table({"id": list(range(len(texts))), "text": list(texts)})
    parquet.write_table(table, file, row_group_size=4)
    return file


def tar(folder: Path, texts: Sequence[str]) -> Path:
    """Every other sample is a text, the others are objects; all have a picture beside them."""
    file = folder / "corpus.tar"
    with tarfile.open(file, "w") as archive:
        for number, text in enumerate(texts):
            ending, content = ("txt", text) if number % 2 else ("json", json.dumps({"text": text, "label": number}))
            for name, data in ((f"{ending}", content.encode()), ("jpg", b"\xff\xd8 no text")):
                member = tarfile.TarInfo(f"part/{number:04}.{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return file


FORMS: dict[str, Callable[[Path, Sequence[str]], Path]] = {
    "jsonl": jsonl,
    "jsonl.gz": jsonl_gz,
    "tsv": tsv,
    "csv": csv_file,
    "txt": plain,
    "parquet": parquet,
    "tar": tar,
}


def all_rows(shards: TokenShards) -> list[list[int]]:
    opened = [shards.documents(number).tokens for number in range(len(shards))]
    return [tokens[row] for tokens in opened for row in range(len(tokens))]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.glob("*.safetensors")}
