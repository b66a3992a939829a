"""Pairs are read, bad rows told, and no source is both trained on and held out."""

from pathlib import Path

import pytest

from qkv.api.pairs import fingerprint, hold_out, read_pairs
from qkv.errors import QkvError

PAIRS = [(f"source {n}", f"target {n}.{variant}") for n in range(100) for variant in (1, 2)]


def test_pairs_are_two_named_columns(tmp_path: Path) -> None:
    file = tmp_path / "words.tsv"
    file.write_text("note\tword\tphonemes\nx\tcat\tK AE T\ny\tdog\tD AO G\n")
    assert read_pairs(file, "word", "phonemes") == [("cat", "K AE T"), ("dog", "D AO G")]
    assert read_pairs(file, "word", "phonemes", prefix="say: ")[0] == ("say: cat", "K AE T")


def test_bad_rows_are_told_one_by_one_and_then_counted(tmp_path: Path) -> None:
    file = tmp_path / "words.tsv"
    file.write_text("a\tb\n" + "only one column\n" * 8 + "x\ty\n")
    said: list[str] = []
    assert read_pairs(file, "a", "b", say=said.append) == [("x", "y")]
    assert said[0] == f"Left out: {file} line 2: 1 columns where 2 are expected"
    assert len(said) == 6
    assert "8 bad rows in all" in said[-1]


def test_bad_rows_are_told_on_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "words.tsv"
    file.write_text("a\tb\nx\t\nx\ty\n")
    read_pairs(file, "a", "b")
    captured = capsys.readouterr()
    assert "line 2: the column 'b' is empty" in captured.err
    assert captured.out == ""


def test_a_column_is_not_paired_with_itself(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match="two different columns"):
        read_pairs(tmp_path / "any.tsv", "a", "a")


def test_no_source_is_on_both_sides() -> None:
    kept, held = hold_out(PAIRS, 0.1)
    assert sorted(kept + held) == sorted(PAIRS)
    assert len(held) == 20
    assert not {source for source, _ in kept} & {source for source, _ in held}


def test_the_order_of_pairs_does_not_change_what_is_held_out() -> None:
    assert sorted(hold_out(PAIRS, 0.1)[1]) == sorted(hold_out(PAIRS[::-1], 0.1)[1])


@pytest.mark.parametrize("share", [1e-9, 0.999])
def test_both_sides_keep_at_least_one(share: float) -> None:
    kept, held = hold_out(PAIRS[:4], share)
    assert len(kept) == len(held) == 2


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, float("nan")])
def test_a_share_lies_between_nothing_and_all(share: float) -> None:
    with pytest.raises(QkvError, match="between 0 and 1"):
        hold_out(PAIRS, share)


def test_one_source_cannot_be_divided() -> None:
    with pytest.raises(QkvError, match="two different sources"):
        hold_out(PAIRS[:2], 0.5)


def test_a_fingerprint_tells_where_a_text_ends() -> None:
    assert fingerprint([("ab", "c")]) != fingerprint([("a", "bc")])
    assert fingerprint([("ab", "c")]) == fingerprint([("ab", "c")])
    assert fingerprint([("a", "b"), ("c", "d")]) != fingerprint([("c", "d"), ("a", "b")])
