"""Files of tokens: what is written is read back by map, and whatever changes in them is found."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from qkv.data.token_files import DamagedTokens, gathering, open_token_file, write_token_file
from qkv.errors import QkvError

ROWS = [[5, 6, 7], [], [65535], [8, 9]]
BYTES = [30, 0, 7, 11]


def written(file: Path, vocabulary: int = 65536, rows: list[list[int]] = ROWS) -> Path:
    with gathering(file.parent, vocabulary) as gathered:
        gathered.add(rows[:1], BYTES[:1])
        gathered.add(rows[1:], BYTES[1 : len(rows)])
        write_token_file(file, gathered, {"key": "k", "source": "a “b”"})
    return file


@pytest.mark.parametrize(("vocabulary", "kind"), [(65536, np.uint16), (65537, np.int32)])
def test_documents_come_back_from_disk(vocabulary: int, kind: type, tmp_path: Path) -> None:
    found = open_token_file(written(tmp_path / "x.safetensors", vocabulary), vocabulary=vocabulary)
    tokens = found.documents.tokens
    assert [tokens[row] for row in range(len(tokens))] == ROWS
    assert found.documents.bytes.tolist() == BYTES
    assert found.notes["source"] == "a “b”"
    assert tokens.ids.dtype == kind


def test_ids_are_mapped_and_not_loaded(tmp_path: Path) -> None:
    found = open_token_file(written(tmp_path / "x.safetensors"), vocabulary=65536)
    base = found.documents.tokens.ids
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        found.documents.tokens.ids[0] = 1


def test_the_library_of_safetensors_reads_the_file(tmp_path: Path) -> None:
    found = load_file(written(tmp_path / "x.safetensors"))
    assert found["ids"].tolist() == [token for row in ROWS for token in row]
    assert found["offsets"].tolist() == [0, 3, 3, 4, 6]


def test_no_document_is_a_file_too(tmp_path: Path) -> None:
    with gathering(tmp_path, 10) as gathered:
        write_token_file(tmp_path / "x", gathered, {})
    assert len(open_token_file(tmp_path / "x", vocabulary=10).documents) == 0


def test_every_byte_that_changes_is_found(tmp_path: Path) -> None:
    file = written(tmp_path / "x.safetensors")
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DamagedTokens, match=r"x\.safetensors"):
            open_token_file(file, vocabulary=65536)


def test_every_length_but_the_right_one_is_found(tmp_path: Path) -> None:
    file = written(tmp_path / "x.safetensors")
    whole = file.read_bytes()
    for content in (*(whole[:end] for end in range(len(whole))), whole + b"\0"):
        file.write_bytes(content)
        with pytest.raises(DamagedTokens):
            open_token_file(file, vocabulary=65536)
        with pytest.raises(DamagedTokens):  # also unverified it is not mapped beyond its end
            open_token_file(file, vocabulary=65536, verify=False)


def test_a_file_of_something_else_is_no_file_of_tokens(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(3)}, tmp_path / "model.safetensors")
    (tmp_path / "deep").write_bytes((100_000).to_bytes(8, "little") + b"[" * 100_000)
    for name in ("model.safetensors", "deep", "missing"):
        with pytest.raises(QkvError, match=name):
            open_token_file(tmp_path / name, vocabulary=10)


def test_a_right_checksum_does_not_excuse_wrong_numbers(tmp_path: Path) -> None:
    file = written(tmp_path / "x.safetensors")
    with pytest.raises(DamagedTokens, match="not in a vocabulary of 100 tokens"):
        open_token_file(file, vocabulary=100)
    with gathering(tmp_path, 10) as gathered:
        gathered.add([[1, 2], [3]], [5, 6])
        gathered.lengths = [np.array([4, -1])]
        write_token_file(file, gathered, {})
    with pytest.raises(DamagedTokens, match="do not fit"):
        open_token_file(file, vocabulary=10)
