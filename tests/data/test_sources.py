"""A corpus in stretches: each can be read alone, and together they are the whole, however it is divided."""

import gzip
import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qkv.data.documents import read_documents
from qkv.data.source import Source, text_hash
from qkv.data.sources import sources_of
from qkv.data.table import Problem
from qkv.errors import QkvError
from tests.data.corpus_files import FORMS, TEXTS, jsonl, parquet, plain, tar, tsv


def found(sources: list[Source]) -> tuple[list[str], list[Problem]]:
    everything = [item for source in sources for item in source.read()]
    return (
        [item for item in everything if isinstance(item, str)],
        [item for item in everything if isinstance(item, Problem)],
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shard_bytes", [1, 300, 1 << 20])
def test_every_form_gives_what_the_reader_of_whole_files_gives(form: str, shard_bytes: int, tmp_path: Path) -> None:
    file = FORMS[form](tmp_path, TEXTS)
    sources = sources_of(file, shard_bytes=shard_bytes, blank_lines_divide=True)
    assert found(sources) == (read_documents(file, blank_lines_divide=True).texts, [])
    assert len(found(sources)[0]) == len(TEXTS)
    divisible = form in ("jsonl", "tsv", "txt", "parquet")
    assert (len(sources) > 1) == (divisible and shard_bytes < 1000)
    assert len({source.name for source in sources}) == len(sources)


def test_a_text_file_is_one_document_unless_blank_lines_divide_it(tmp_path: Path) -> None:
    file = plain(tmp_path, TEXTS)
    (source,) = sources_of(file, shard_bytes=10)
    assert list(source.read()) == read_documents(file).texts
    assert source.name == "corpus.txt"


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    jsonl(tmp_path / "b", TEXTS[:5])
    tar(tmp_path, TEXTS[5:9])
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"first"))
    (tmp_path / "notes.md").write_text("not read")
    sources = sources_of(tmp_path, shard_bytes=200)
    assert found(sources)[0] == read_documents(tmp_path).texts == ["first", *TEXTS[:5], *TEXTS[5:9]]
    assert [source.name.partition(" ")[0] for source in sources] == ["a.txt.gz", *["b/corpus.jsonl"] * 2, "corpus.tar"]
    assert sources[1].name.startswith("b/corpus.jsonl bytes 0 to 2")


LINES = st.sampled_from(
    [b'{"text": "a"}', b'{"text": "\\u00fc two words"}', b"{broken", b"", b"  ", b"[1]", b'{"other": "x"}', b"\xff",
     b'\xef\xbb\xbf{"text": "marked"}', b'{"text": "caf\xc3\xa9"}\r']
)  # fmt: skip


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(LINES, max_size=12), ended=st.booleans(), shard_bytes=st.integers(1, 80))
def test_no_line_is_lost_or_doubled_wherever_a_file_is_cut(
    lines: list[bytes], ended: bool, shard_bytes: int, tmp_path: Path
) -> None:
    file = tmp_path / "x.jsonl"
    file.write_bytes(b'{"text": "first"}\n' + b"\n".join(lines) + (b"\n" if ended else b""))
    texts, problems = found(sources_of(file, shard_bytes=shard_bytes))
    whole = read_documents(file)
    assert texts == whole.texts
    assert [problem.reason for problem in problems] == [problem.reason for problem in whole.problems]


PIECES = st.sampled_from(
    [b"a", b"b c", b"\n", b"\n\n", b" ", b"\t", b"\r\n", b"\r", b"\xc2\xa0", b"\xe2\x80\xa8", b"\x0c", b"\xc3\xbc",
     b"\xef\xbb\xbf"]
)  # fmt: skip


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(PIECES, max_size=30), shard_bytes=st.integers(1, 30))
def test_no_paragraph_is_lost_or_doubled_wherever_a_file_is_cut(
    pieces: list[bytes], shard_bytes: int, tmp_path: Path
) -> None:
    file = tmp_path / "x.txt"
    file.write_bytes(b"".join(pieces))
    texts, problems = found(sources_of(file, shard_bytes=shard_bytes, blank_lines_divide=True))
    try:
        wanted = read_documents(file, blank_lines_divide=True).texts
    except QkvError:
        wanted = []
    assert texts == wanted
    assert {problem.reason for problem in problems} <= {"there is no text in the file"}


def test_bytes_that_are_no_text_spoil_their_own_paragraph_only(tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    file.write_bytes(b"one\n\ntwo\n\xff three\n\nfour\n")
    assert found(sources_of(file, blank_lines_divide=True)) == (
        ["one", "four"],
        [Problem("x.txt", 4, "the text is not valid UTF-8")],
    )


def test_bad_rows_are_problems_with_their_stretch(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"text": "one"}\n{"text": "two"}\n{"text": 3}\n{"text": "four"}\n')
    texts, problems = found(sources_of(file, shard_bytes=17))
    assert texts == ["one", "two", "four"]
    assert [str(problem) for problem in problems] == [
        "x.jsonl from byte 32 line 1: the column 'text' holds 3 (int), not text"
    ]


def test_a_wrong_column_is_said_at_the_first_stretch(tmp_path: Path) -> None:
    for form in (jsonl, tsv, tar):
        sources = sources_of(form(tmp_path, TEXTS), column="txet", shard_bytes=300)
        with pytest.raises(QkvError, match=r"no column 'txet' \(did you mean 'text'\?\)"):
            list(sources[0].read())
    with pytest.raises(QkvError, match="no column 'txet'"):
        sources_of(parquet(tmp_path, TEXTS), column="txet")


def test_what_cannot_be_a_corpus_is_said(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match="Standard input cannot be read in parts"):
        sources_of("-")
    with pytest.raises(QkvError, match="There is no format 'json'"):
        sources_of(tmp_path, format="json")
    with pytest.raises(QkvError, match="at least 1"):
        sources_of(tmp_path, shard_bytes=0)
    with pytest.raises(QkvError, match="holds no text"):
        sources_of(tmp_path)
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(QkvError, match=r"pipe\.jsonl is a pipe or a device"):
        sources_of(tmp_path / "pipe.jsonl")
    with pytest.raises(QkvError, match=r"missing\.txt cannot be read: no such file"):
        sources_of(tmp_path / "missing.txt")
    with pytest.raises(QkvError, match="not int"):
        sources_of(3)


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "parquet", "tar"])
def test_identity_is_cheap_and_the_hash_covers_every_text(form: str, tmp_path: Path) -> None:
    file = FORMS[form](tmp_path, TEXTS)
    before = sources_of(file, shard_bytes=1000)
    hashes, stamps = [text_hash(source) for source in before], [source.stamp() for source in before]
    os.utime(file, ns=(1, 1))
    same = sources_of(file, shard_bytes=1000)
    assert [source.identity() for source in same] == [source.identity() for source in before]
    assert [text_hash(source) for source in same] == hashes
    assert all(source.stamp() != stamp for source, stamp in zip(same, stamps, strict=True))
    FORMS[form](tmp_path, [*TEXTS[:-1], TEXTS[-1] + "!"])
    other = sources_of(file, shard_bytes=1000)
    assert [text_hash(source) for source in other] != hashes
    if form != "tar":  # whose size is rounded up, and whose sample may miss a letter
        assert all(one.identity() not in [source.identity() for source in before] for one in other)


def test_a_file_that_changes_under_its_sources_is_said(tmp_path: Path) -> None:
    sources = sources_of(jsonl(tmp_path, TEXTS), shard_bytes=500)
    jsonl(tmp_path, TEXTS[:-1])
    with pytest.raises(QkvError, match=r"corpus\.jsonl was changed"):
        list(sources[1].read())


def test_a_file_without_texts_is_a_problem(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.txt", "c.csv"):
        (tmp_path / name).write_text("")
    (tmp_path / "d.tsv").write_text("text\n")
    texts, problems = found(sources_of(tmp_path, blank_lines_divide=True))
    assert texts == []
    assert [problem.file for problem in problems] == ["a.jsonl", "b.txt", "c.csv", "d.tsv"]


def test_data_sets_of_the_library_are_read_in_ranges(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"text": [*TEXTS, None], "id": list(range(len(TEXTS) + 1))})
    data.save_to_disk(str(tmp_path / "saved"))
    for given_ in (data, tmp_path / "saved", data.with_format("numpy")):
        sources = sources_of(given_, shard_bytes=400)
        texts, problems = found(sources)
        assert texts == TEXTS
        assert [(problem.line, problem.reason) for problem in problems] == [
            (len(TEXTS) + 1, "the column 'text' is missing")
        ]
        assert len(sources) > 3
    turned = data.select(range(10)).select(reversed(range(10)))  # with a table of indices
    assert found(sources_of(turned, shard_bytes=100))[0] == TEXTS[:10][::-1]
    with pytest.raises(QkvError, match="no column 'txet'"):
        sources_of(data, column="txet")
    with pytest.raises(QkvError, match="knows its rows"):
        sources_of(data.to_iterable_dataset())
    datasets.DatasetDict({"train": data, "test": data}).save_to_disk(str(tmp_path / "both"))
    with pytest.raises(QkvError, match=r"splits test, train: give one of them, such as .*both/test"):
        sources_of(tmp_path / "both")


def test_a_damaged_data_set_is_one_sentence(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(str(tmp_path / "saved"))
    (arrow,) = (tmp_path / "saved").glob("*.arrow")
    arrow.write_bytes(arrow.read_bytes()[: arrow.stat().st_size // 2])
    with pytest.raises(QkvError, match="not a whole data set"):
        found(sources_of(tmp_path / "saved"))


def write_tar(file: Path, members: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(file, "w") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return file


def test_samples_of_a_tar_shard_are_rows(tmp_path: Path) -> None:
    members = [
        ("a/1.txt", b"one"), ("a/1.json", b'{"text": "hidden by the .txt", "title": "T"}'), ("a/1.jpg", b"\xff"),
        ("b/1.txt", b"another folder"), ("2.seg.txt", b"another ending"), ("3.json", b"[1]"), ("4.txt", b"\xff"),
        ("5.json", json.dumps({"text": "five"}).encode()),
    ]  # fmt: skip
    texts, problems = found(sources_of(write_tar(tmp_path / "x.tar", members)))
    assert texts == ["one", "another folder", "five"]
    assert [(problem.line, problem.reason) for problem in problems] == [
        (3, "the sample 2 holds neither a .txt nor a .json member"),
        (4, "the member 3.json holds a JSON list, not an object"),
        (5, "the member 4.txt is not valid UTF-8"),
    ]
    assert read_documents(tmp_path / "x.tar", column="title").texts == ["T"]


def test_a_damaged_tar_shard_is_said_wherever_it_is_cut(tmp_path: Path) -> None:
    """Also where it ends between two members, or a header is damaged, which the module takes for the end."""
    file = write_tar(tmp_path / "x.tar", [(f"{number}.txt", b"text") for number in range(5)])
    whole = file.read_bytes()
    for end in (10, 512, 700, 1024, 2048, 5 * 1024):
        file.write_bytes(whole[:end])
        with pytest.raises(QkvError, match=r"x\.tar is not a whole tar file"):
            found(sources_of(file))
    for place in (0, 1024 + 100, 4096 + 150):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        with pytest.raises(QkvError, match=r"x\.tar is not a whole tar file"):
            found(sources_of(file))
