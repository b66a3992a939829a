"""Tables from files: what is read, and what is said about what cannot be."""

import gzip
import io
import json
import lzma
import sys

import pytest

from qkv.data.table import Problem, read_table
from qkv.errors import QkvError

GOOD = [{"word": "cat", "phonemes": "K AE T"}, {"word": "dog", "phonemes": "D AO G"}]
TSV = "word\tphonemes\ncat\tK AE T\ndog\tD AO G\n"


def write(folder, name, content):
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def test_tsv_with_header(tmp_path):
    table = read_table(write(tmp_path, "words.tsv", TSV), ["word", "phonemes"])
    assert table.rows == GOOD
    assert table.problems == []
    assert len(table) == 2
    assert table.column("phonemes") == ["K AE T", "D AO G"]


def test_all_columns_when_none_are_named(tmp_path):
    assert read_table(write(tmp_path, "words.tsv", TSV)).columns == ["word", "phonemes"]


def test_only_wanted_columns_are_kept_and_checked(tmp_path):
    table = read_table(write(tmp_path, "words.tsv", "a\tb\tc\nx\t\ty\n"), ["c", "a"])
    assert table.rows == [{"c": "y", "a": "x"}]


def test_tsv_without_header(tmp_path):
    file = write(tmp_path, "words.tsv", "cat\tK AE T\ndog\tD AO G\n")
    assert read_table(file, names=["word", "phonemes"]).rows == GOOD


def test_tsv_knows_no_quoting(tmp_path):
    table = read_table(write(tmp_path, "q.tsv", 'a\tb\n"open\t"x" y\n'))
    assert table.rows == [{"a": '"open', "b": '"x" y'}]


def test_windows_line_ends_and_byte_order_mark(tmp_path):
    for name, content in [
        ("w.tsv", TSV.replace("\n", "\r\n")),
        ("w.csv", "word,phonemes\r\ncat,K AE T\r\ndog,D AO G\r\n"),
    ]:
        assert read_table(write(tmp_path, name, b"\xef\xbb\xbf" + content.encode())).rows == GOOD


def test_unusual_separators_stay_in_the_text(tmp_path):
    text = "a\x0bb\x0cc\x85d\u2028e\x00f\u00a0"
    table = read_table(write(tmp_path, "w.tsv", f"t\tu\n{text}\tx\n"))
    assert table.column("t") == [text]


def test_csv_quoting_and_line_of_a_record_that_spans_lines(tmp_path):
    table = read_table(write(tmp_path, "w.csv", 'a,b\n"x, ""y""","two\nlines"\nonly one\n"ok",ok\n'))
    assert table.rows == [{"a": 'x, "y"', "b": "two\nlines"}, {"a": "ok", "b": "ok"}]
    assert [problem.line for problem in table.problems] == [4]


def test_csv_with_a_quote_that_never_closes(tmp_path):
    table = read_table(write(tmp_path, "w.csv", 'a,b\n1x,2x\n"open,3x\nmore,4x\n'))
    assert table.rows == [{"a": "1x", "b": "2x"}, {"a": "more", "b": "4x"}]
    assert [problem.line for problem in table.problems] == [3]
    assert "opens a quote" in table.problems[0].reason


def test_csv_with_quotes_that_are_not_closed_loses_those_lines_alone(tmp_path):
    """The quote of line 4 would be closed by that of line 7; the last line has no line after it."""
    lines = ["a,b", '"well, closed","two', 'lines"', '"open,3', "more,4", 'one "in" the middle,5', '"x",6', '7,"open']
    table = read_table(write(tmp_path, "w.csv", "\n".join(lines)))
    assert [row["b"] for row in table.rows] == ["two\nlines", "4", "5", "6"]
    assert [problem.line for problem in table.problems] == [4, 8]


def test_csv_with_a_header_that_opens_a_quote(tmp_path):
    with pytest.raises(QkvError, match=r"header .* opens a quote"):
        read_table(write(tmp_path, "w.csv", 'a,"b\n1,2\n'))


def test_csv_goes_on_after_a_quote_that_would_take_in_a_whole_file(tmp_path):
    rows = "".join(f"{number},x\n" for number in range(50_000))  # more than the csv module takes for one field
    table = read_table(write(tmp_path, "w.csv", f'a,b\n"open,x\n{rows}'))
    assert len(table) == 50_000
    assert [problem.line for problem in table.problems] == [2]


def test_jsonl(tmp_path):
    file = write(tmp_path, "w.jsonl", "".join(json.dumps(row | {"extra": 1}) + "\n" for row in GOOD))
    assert read_table(file, ["word", "phonemes"]).rows == GOOD


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_compressed(tmp_path, suffix, compress):
    packed = compress(TSV.encode())
    assert read_table(write(tmp_path, "w.tsv" + suffix, packed)).rows == GOOD
    with pytest.raises(QkvError, match="cut short"):
        read_table(write(tmp_path, "short.tsv" + suffix, packed[:-6]))
    with pytest.raises(QkvError, match="cannot be decompressed"):
        read_table(write(tmp_path, "fake.tsv" + suffix, TSV))


def test_parquet(tmp_path):
    import pyarrow
    from pyarrow import parquet

    bad = pyarrow.array(["cat", None, ""])
    parquet.write_table(pyarrow.table({"word": bad, "n": [1, 2, 3]}), tmp_path / "w.parquet")
    table = read_table(tmp_path / "w.parquet", ["word"])
    assert table.rows == [{"word": "cat"}]
    assert [(problem.line, problem.reason) for problem in table.problems] == [
        (2, "the column 'word' is missing"),
        (3, "the column 'word' is empty"),
    ]
    with pytest.raises(QkvError, match=r"None of the 3 rows.*\(int\), not text"):
        read_table(tmp_path / "w.parquet", ["n"])
    with pytest.raises(QkvError, match="did you mean 'word'"):
        read_table(tmp_path / "w.parquet", ["wrod"])
    whole = (tmp_path / "w.parquet").read_bytes()
    with pytest.raises(QkvError, match="not a whole parquet file"):
        read_table(write(tmp_path, "cut.parquet", whole[: len(whole) // 2]))


def test_parquet_without_its_extra_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(QkvError, match=r"pip install 'qkv\[parquet\]'"):
        read_table(write(tmp_path, "w.parquet", "PAR1"))


def test_folder_is_read_in_name_order(tmp_path):
    write(tmp_path, "b.tsv.gz", gzip.compress(b"word\tphonemes\ndog\tD AO G\n"))
    write(tmp_path, "a.jsonl", json.dumps(GOOD[0]))
    write(tmp_path, "README.md", "not data")
    write(tmp_path, ".hidden.tsv", "junk")
    assert read_table(tmp_path, ["word", "phonemes"]).rows == GOOD
    assert read_table(tmp_path, ["word", "phonemes"], format="jsonl").rows == GOOD[:1]


def test_standard_input(monkeypatch):
    def pipe(content):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode()), encoding="utf-8"))

    pipe(TSV)
    assert read_table("-", format="tsv").rows == GOOD
    pipe("word,phonemes\ncat,K AE T\nbad\n")
    table = read_table("-", format="csv")
    assert str(table.problems[0]) == "standard input line 3: 1 columns where 2 are expected"
    pipe("")
    with pytest.raises(QkvError, match="no rows in standard input"):
        read_table("-", format="jsonl")
    with pytest.raises(QkvError, match=r"give --format.* one of tsv"):
        read_table("-")


def test_bad_rows_of_tsv_are_reported_with_line_and_reason(tmp_path):
    file = write(tmp_path, "w.tsv", b"a\tb\nx\ty\nx\n\nx\ty\tz\n\xff\ty\n \ty\nx\ty")
    table = read_table(file)
    assert table.rows == [{"a": "x", "b": "y"}] * 2
    assert table.problems == [
        Problem(str(file), 3, "1 columns where 2 are expected"),
        Problem(str(file), 4, "the line is blank"),
        Problem(str(file), 5, "3 columns where 2 are expected"),
        Problem(str(file), 6, "the line is not valid UTF-8"),
        Problem(str(file), 7, "the column 'a' is empty"),
    ]


def test_bad_rows_of_csv_in_other_encodings(tmp_path):
    table = read_table(write(tmp_path, "w.csv", b"a,b\n\xff,y\nx,y\n"))
    assert [(problem.line, problem.reason) for problem in table.problems] == [(2, "the line is not valid UTF-8")]


def test_bad_rows_of_jsonl_are_reported_with_line_and_reason(tmp_path):
    lines = [
        b'{"a": "x", "b": "y"}',
        b'{"a": "x"',
        b'["x", "y"]',
        b'{"a": "x"}',
        b'{"a": "x", "b": 3}',
        b'{"a": "x", "b": null}',
        b'{"a": "x", "b": "\\ud800"}',
        b'{"a": "\xff", "b": "y"}',
        b"",
        b"[" * 100_000,
    ]
    table = read_table(write(tmp_path, "w.jsonl", b"\n".join(lines)), ["a", "b"])
    assert table.rows == [{"a": "x", "b": "y"}]
    assert [problem.line for problem in table.problems] == list(range(2, 11))
    for problem, part in zip(
        table.problems,
        ["invalid JSON", "list", "'b' is missing", "3 (int)", "missing", "surrogate", "UTF-8", "blank", "invalid JSON"],
        strict=True,
    ):
        assert part in problem.reason


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        ("w.tsv", "", None, "no rows in .*w.tsv: it is empty"),
        ("w.tsv", "a\tb\n", None, "nothing but a header"),
        ("w.csv", "", None, "no rows"),
        ("w.jsonl", "", None, "no rows"),
        ("w.parquet", "", None, "no rows"),
        ("w.tsv", "word\tphon\nx\ty\n", ["wrod"], r"no column 'wrod' \(did you mean 'word'\?\).*are word, phon"),
        ("w.tsv", "Word\tphon\nx\ty\n", ["word"], "did you mean 'Word'"),
        ("w.tsv", "word\tphon\nx\ty\n", ["zzz"], "no column 'zzz': its columns are word, phon"),
        ("w.csv", "word,phon\nx,y\n", ["wrod"], "did you mean 'word'"),
        ("w.jsonl", '{"word": "x"}\n{"phon": "x"}\n', ["wrod"], "did you mean 'word'.*are word, phon"),
        ("w.tsv", "a\ta\nx\ty\n", None, "'a' twice"),
        ("w.tsv", b"\xff\ta\nx\ty\n", None, "header line of .* is not valid UTF-8"),
        ("w.csv", b"\xff,a\nx,y\n", None, "header line of .* is not valid UTF-8"),
        ("w.tsv", "a\tb\nx\ny\n", None, "None of the 2 rows .* line 2: 1 columns where 2 are expected"),
        ("w.jsonl", "x\ny\n", None, "None of the 2 rows .* line 1: invalid JSON"),
        ("w.txt", "a\n", None, "tells no known format.*tsv"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_clear_sentence(tmp_path, name, content, columns, message):
    with pytest.raises(QkvError, match=message) as caught:
        read_table(write(tmp_path, name, content), columns)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_wrong_paths_and_settings(tmp_path):
    with pytest.raises(QkvError, match=r"There is no file .*absent.tsv"):
        read_table(tmp_path / "absent.tsv")
    with pytest.raises(QkvError, match=r"There is no file .*absent"):
        read_table(tmp_path / "absent")
    with pytest.raises(QkvError, match="holds no data file"):
        read_table(tmp_path)
    file = write(tmp_path, "w.tsv", TSV)
    with pytest.raises(QkvError, match=r"no format 'jsnl'.*did you mean 'jsonl'"):
        read_table(file, format="jsnl")
    with pytest.raises(QkvError, match="not all different"):
        read_table(file, names=["a", "a"])
    with pytest.raises(QkvError, match="name their own columns"):
        read_table(write(tmp_path, "w.jsonl", "{}"), names=["a"])
    with pytest.raises(QkvError, match=r"The table has no column 'wordd'.*did you mean 'word'"):
        read_table(file).column("wordd")


def test_parquet_with_a_column_twice(tmp_path):
    import pyarrow
    from pyarrow import parquet

    doubled = pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["word", "word"])
    parquet.write_table(doubled, tmp_path / "w.parquet")
    with pytest.raises(QkvError, match="names the column 'word' twice"):
        read_table(tmp_path / "w.parquet", ["word"])
