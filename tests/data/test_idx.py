"""IDX files hold what their headers say, or are refused."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from qkv.data.idx import read_idx
from qkv.errors import QkvError


def content(array: np.ndarray, kind: int) -> bytes:
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize(("kind", "dtype"), [(0x08, ">u1"), (0x09, ">i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4")])
def test_numbers_of_every_kind_are_read(kind: int, dtype: str, tmp_path: Path) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    (tmp_path / "a.gz").write_bytes(gzip.compress(content(array, kind)))
    (tmp_path / "a").write_bytes(content(array, kind))
    for name in ("a", "a.gz"):
        read = read_idx(tmp_path / name)
        assert np.array_equal(read, array)
        assert read.dtype.isnative


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda good: good[:-1], "of the 24 bytes"),
        (lambda good: good + b"x", "more than the 24 bytes"),
        (lambda good: good[:9], "within its header"),
        (lambda good: b"", "is no IDX file"),
        (lambda good: b"\x89PNG" + good, "is no IDX file"),
        (lambda good: b"\0\0\x0e\3" + b"\xff" * 12, "more than the"),
    ],
)
def test_a_broken_file_is_told(change, told: str, tmp_path: Path) -> None:
    good = content(np.arange(24).reshape(2, 3, 4).astype(">u1"), 0x08)
    (tmp_path / "broken").write_bytes(change(good))
    with pytest.raises(QkvError, match=told):
        read_idx(tmp_path / "broken")
