"""Tensors cut in any way on disk are read back cut in any other; what does not fit together is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qkv.errors import QkvError
from qkv.files import read_notes, write_tensors
from qkv.train.parallel.pieces import Piece, whole_piece
from qkv.train.parallel.stored_pieces import NOTE, StoredTensors, write_pieces

WHOLE = torch.arange(7 * 5, dtype=torch.float32).view(7, 5)


def cut(whole: Tensor, rows: list[int], columns: list[int]) -> list[Piece]:
    """A copy in pieces, cut before these rows and columns."""
    pieces = []
    for top, bottom in zip([0, *rows], [*rows, len(whole)], strict=True):
        for left, right in zip([0, *columns], [*columns, whole.shape[1]], strict=True):
            part = whole[top:bottom, left:right].clone()
            pieces.append(Piece("w", tuple(whole.shape), (top, left), part))
    return pieces


def places(least: int, most: int) -> Any:
    return st.lists(st.integers(least, most), max_size=3, unique=True).map(sorted)


@settings(max_examples=25, deadline=None)
@given(places(1, 6), places(1, 4), places(0, 7), places(0, 5), st.integers(1, 3))
def test_any_cut_is_read_by_any_other(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[int],
    columns: list[int],
    other_rows: list[int],
    other_columns: list[int],
    count: int,
) -> None:
    folder, pieces = tmp_path_factory.mktemp("cut"), cut(WHOLE, rows, columns)
    files = [folder / f"model-{rank:05d}.safetensors" for rank in range(count)]
    for rank, file in enumerate(files):
        write_pieces(file, [*pieces[rank::count], *([whole_piece("n", torch.tensor(3))] if rank == 0 else [])])
    stored = StoredTensors(files)
    assert torch.equal(stored["w"], WHOLE)
    assert stored["n"].item() == 3
    assert (len(stored), set(stored), stored.shape("w"), stored.dtype("w")) == (2, {"w", "n"}, (7, 5), torch.float32)
    wanted = cut(torch.full_like(WHOLE, -1), other_rows, other_columns)
    stored.read_into(wanted)
    for expected, piece in zip(cut(WHOLE, other_rows, other_columns), wanted, strict=True):
        assert torch.equal(piece.tensor, expected.tensor)


def test_what_is_whole_is_written_as_in_a_model_folder(tmp_path: Path) -> None:
    write_pieces(tmp_path / "a", [whole_piece("w", WHOLE), Piece("v", (3,), (0,), torch.zeros(0))])
    assert read_notes(tmp_path / "a") == {"format": "pt"}
    assert list(StoredTensors([tmp_path / "a"])) == ["w"]


def note(**changes: Any) -> str:
    return json.dumps({"k": {"tensor": "w", "shape": [4, 2], "start": [2, 0], **changes}})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (note(start=[3, 0]), "has no place in it"),
        (note(start=[2]), "does not say where"),
        (note(start=[-2, 0]), "does not say where"),
        (note(start=[True, 0]), "does not say where"),
        (note(tensor=5), "does not say where"),
        (note(shape=[4, 2, 1], start=[0, 0, 0]), "has no place in it"),
        (note(shape=[10**30, 2]), "does not say where"),
        (note(shape=[10**12, 2]), "do not make it whole"),
        (note(), "do not make it whole"),
        ('{"other": {"tensor": "w", "shape": [2, 2], "start": [0, 0]}}', "does not hold: other"),
        ("[]", "does not say where"),
        ("{", "does not say where"),
        ("[" * 100_000, "does not say where"),
        ('{"k": 1}', "does not say where"),
    ],
)
def test_a_note_that_makes_no_sense_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    write_tensors(tmp_path / "a", {"k": torch.zeros(2, 2)}, {NOTE: text})
    with pytest.raises(QkvError, match=said):
        StoredTensors([tmp_path / "a"])


def test_pieces_that_lie_over_each_other_are_refused(tmp_path: Path) -> None:
    zeros = torch.zeros
    over = {
        "rows": [((0, 0), (2, 2)), ((1, 0), (2, 2))],
        "columns": [((0, 0), (4, 1)), ((0, 0), (2, 2))],
        "twice": [((0, 0), (2, 2)), ((0, 0), (2, 2))],
    }
    for name, boxes in over.items():
        files = [tmp_path / f"{name}-{number}" for number in range(2)]
        for file, (start, size) in zip(files, boxes, strict=True):
            write_pieces(file, [Piece("w", (4, 2), start, zeros(size))])
        with pytest.raises(QkvError, match="do not make it whole"):
            StoredTensors(files)


def test_pieces_of_different_tensors_are_not_mixed(tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    write_pieces(files[0], [Piece("w", (4,), (0,), torch.zeros(2))])
    write_pieces(files[1], [Piece("w", (4,), (2,), torch.zeros(2, dtype=torch.float64))])
    with pytest.raises(QkvError, match="b holds a piece of w that has no place in it"):
        StoredTensors(files)


def test_another_model_is_refused(tmp_path: Path) -> None:
    write_pieces(tmp_path / "a", [whole_piece("w", WHOLE)])
    stored = StoredTensors([tmp_path / "a"])
    stored.fill(own := cut(torch.zeros_like(WHOLE), [3], []))
    assert torch.equal(own[1].tensor, WHOLE[3:])
    for tensors, said in [
        ([whole_piece("v", WHOLE)], "lacks the tensor v"),
        ([*own, whole_piece("v", WHOLE)], "lacks the tensor v"),
        ([], "holds the tensor w"),
        ([whole_piece("w", WHOLE[:6])], r"shape \[7, 5\], but this model has \[6, 5\]"),
        ([whole_piece("w", WHOLE.long())], "as torch.float32, but this model has torch.int64"),
    ]:
        with pytest.raises(QkvError, match=said):
            stored.fill(tensors)
