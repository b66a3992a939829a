"""What damaged files of data found, each as the smallest file that did it."""

import base64
import gzip
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import soundfile
from pyarrow import parquet

from qkv.data import records
from qkv.data.boxes import read_coco
from qkv.data.idx import read_idx
from qkv.data.questions import read_questions
from qkv.data.sound import read_sound
from qkv.data.sources import sources_of
from qkv.data.table import read_table
from qkv.data.token_files import open_token_file
from qkv.errors import QkvError
from qkv.files import read_tensors
from tests.fuzz.folders import put
from tests.fuzz.seeds_of_data import COCO

HUGE = 10**400  # more than any float


def test_parquet_with_names_that_are_no_text(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"source": ["a"]}), tmp_path / "a.parquet")
    put(tmp_path / "b.parquet", (tmp_path / "a.parquet").read_bytes().replace(b"source", b"s\xff\xfe\xfdce"))
    with pytest.raises(QkvError, match="not a whole parquet file"):
        read_table(tmp_path / "b.parquet")


def test_an_array_that_is_not_there_takes_no_memory(tmp_path: Path) -> None:
    put(tmp_path / "a.idx", struct.pack(">4BI", 0, 0, 8, 1, 2**32 - 2) + b"some")
    with pytest.raises(QkvError, match="holds 4 of the"):
        read_idx(tmp_path / "a.idx")


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz", "a.jsonl", "a.csv.gz"])
def test_lines_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(records, "LONGEST_LINE", 2**20)
    content = b"a\n" + b" " * 2**22
    put(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(QkvError, match="a line of more than"):
        read_table(tmp_path / name)


def test_questions_in_another_encoding(tmp_path: Path) -> None:
    """Python's parser would guess at it, and import a codec for the purpose."""
    put(tmp_path / "squad.json", json.dumps({"data": []}).encode("utf-32"))
    with pytest.raises(QkvError, match="SQuAD"):
        read_questions(tmp_path / "squad.json")


def test_boxes_beyond_numbers(tmp_path: Path) -> None:
    put(tmp_path / "a.png", b"")
    for corner in (0, 0.5):
        boxed = {**COCO, "annotations": [{**COCO["annotations"][0], "bbox": [corner, 0, HUGE, 5]}]}
        (tmp_path / "coco.json").write_text(json.dumps(boxed))
        if corner:
            with pytest.raises(QkvError, match="no COCO file"):
                read_coco(tmp_path / "coco.json")
        else:
            assert "not of four numbers" in str(read_coco(tmp_path / "coco.json").problems[0])


def test_pictures_whose_names_no_file_can_have(tmp_path: Path) -> None:
    for name in ("a" * 5000, "a\0b"):
        boxed = {**COCO, "images": [{"id": 1, "file_name": name}, {"id": 2, "file_name": name}]}
        (tmp_path / "coco.json").write_text(json.dumps(boxed))
        with pytest.raises(QkvError, match="no such file"):
            read_coco(tmp_path / "coco.json")
    with pytest.raises(QkvError, match="too long"):
        read_tensors(tmp_path / ("a" * 5000))


def test_arrays_of_sizes_that_no_array_has(tmp_path: Path) -> None:
    put(tmp_path / "a.idx", struct.pack(">4B5I", 0, 0, 13, 5, 0, *[2**31] * 4))
    with pytest.raises(QkvError, match="which no array has"):
        read_idx(tmp_path / "a.idx")


def test_rates_that_have_nothing_in_common(tmp_path: Path) -> None:
    """Once a gigabyte of weights, for a file of two hundred bytes."""
    soundfile.write(tmp_path / "a.wav", np.zeros(100), 401_667)
    with pytest.raises(QkvError, match="usual rate"):
        read_sound(tmp_path / "a.wav", 16_000)
    soundfile.write(tmp_path / "b.wav", np.zeros(441), 44_100)
    assert read_sound(tmp_path / "b.wav", 16_000).samples.shape == (160,)


# A parquet file whose note of one column is damaged: asking pyarrow 26 for that note ends the process (SIGABRT).
DAMAGED_NOTE = (
    "eNqtlD1v00AYxx+fTyGYIDWVzvKhvLipanVIXTvvqbqcqwYQQZRILYgBKarctANNSANhYGTIkIEPgICxQkwMVfcixMjA5+ArlOecF4Y6Zckz"
    "nP++u+f//B7fyTui4TLKfhH2UakzjcEiwKkySAJA/ejYNx2zfWA2zZ7/prdh3u1enF188rOmYyfh9hK4jSWIlu1U3IMcSuoWeAbyjQzQnIuq"
    "sIeqYjNgOruTRfMFFmGRRAlWU4F3IdQ7V7GN5LW143Gku7VKcNQUVR3UADv4TdiHaQdflEFq0kEx1CVfROwMlCRsIYewZYSFKoqKnCqWUFVR"
    "RUv52Q1UQ60xw0hdXzq0g6HCntfxKRuoDdITfjf8M5Qdmy+Du7cMtCwJF5mexeQpYXqU7IYnl20j/R/3gPGmKRmpoqiEUZ4tghE52T/0XzQZ"
    "ARZbIQaViStQT+A23eCbPGFBgsV4ESILfLTKiK7p36j+TrV+KFZ0LufPZa8gIQBbJrCpn15eRrgFmuTAYpoVxYIwC+c8wPlJraE6n+O8CvSV"
    "8CnQuQQaqrOJqP6H6N+JNbxhvZ/b8V1lehsgUYmE9SjWwqKIZMREo/HoycbobI3PyrqMvJDxWIzigRB94bVETYiW2GoFc54nxEMptoS4H0z8"
    "e2Jsy2F3rHZlHubfkz6Brzd2Ftu1YKfXnyaJaWnPefb00Jm8e+N1MMxOs/vyld9b2+901prdbrtvvva7J0ftYzNXsh3b5Ql5J8/w/u7gP+4v"
    "OJMkXA=="
)


def test_parquet_whose_notes_end_the_process(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", zlib.decompress(base64.b64decode(DAMAGED_NOTE)))
    with pytest.raises(QkvError, match="not a whole parquet file"):
        _ = [list(source.read()) for source in sources_of(tmp_path / "a.parquet")]


def test_checksums_of_tokens_that_are_no_text(tmp_path: Path) -> None:
    header = b'{"__metadata__": {"checksum": "\\ud800"}}'
    put(tmp_path / "a.safetensors", struct.pack("<Q", len(header)) + header)
    with pytest.raises(QkvError, match="no checksum"):
        open_token_file(tmp_path / "a.safetensors", vocabulary=9)
