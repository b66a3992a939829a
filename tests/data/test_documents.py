"""Corpora: documents found in the files people have, and sentences in them."""

import gzip
import json
from pathlib import Path

import pytest

from qkv.data.documents import Documents, encode_rows, read_documents, sentences_of
from qkv.errors import QkvError


class Letters:
    def encode(self, texts):
        return [[ord(letter) for letter in text] for text in texts]


def test_a_text_file_is_a_document_or_several(tmp_path: Path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"\xef\xbb\xbfOne.\r\nTwo.\r\n\r\n  \nThree.\n")
    assert read_documents(file).texts == ["One.\nTwo.\n\n  \nThree."]
    assert read_documents(file, blank_lines_divide=True).texts == ["One.\nTwo.", "Three."]


def test_a_folder_holds_documents_of_many_kinds(tmp_path: Path):
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.txt").write_text("hidden")
    (tmp_path / "notes.md").write_text("not read")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"first"))
    (tmp_path / "b" / "c" / "d.jsonl").write_text(json.dumps({"text": "second"}) + "\n" + "{broken\n")
    (tmp_path / "e.csv").write_text('text,other\n"third, with a comma",1\n')
    corpus = read_documents(tmp_path)
    assert corpus.texts == ["first", "second", "third, with a comma"]
    assert [problem.line for problem in corpus.problems] == [2]
    assert read_documents(tmp_path, format="csv").texts == ["third, with a comma"]


def test_another_column_can_be_named(tmp_path: Path):
    (tmp_path / "a.tsv").write_text("title\tbody\nT\tB\n")
    assert read_documents(tmp_path / "a.tsv", column="body").texts == ["B"]
    with pytest.raises(QkvError, match="no column 'text'"):
        read_documents(tmp_path / "a.tsv")


def test_bytes_that_are_no_text_are_a_problem_with_a_line(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"fine\nfine\n\xff\n")
    (tmp_path / "b.txt").write_text("fine")
    corpus = read_documents(tmp_path)
    assert corpus.texts == ["fine"]
    assert corpus.problems[0].line == 3
    with pytest.raises(QkvError, match=r"no document in .*a.txt; the first problem .* line 3: .*UTF-8"):
        read_documents(tmp_path / "a.txt")


@pytest.mark.parametrize("content", [b"", b" \n\n"])
def test_an_empty_file_or_folder_is_an_error(tmp_path: Path, content: bytes):
    with pytest.raises(QkvError, match="holds no text"):
        read_documents(tmp_path)
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(QkvError, match="no document in"):
        read_documents(tmp_path)
    with pytest.raises(QkvError, match="There is no file"):
        read_documents(tmp_path / "absent.txt")


def test_sentences_end_where_a_new_one_begins():
    text = 'He said: "Go away!" She did. It cost 3.50 dollars, e.g. a lot... of money. 5 more?\nA line\n\nand another'
    assert sentences_of(text) == [
        'He said: "Go away!"', "She did.", "It cost 3.50 dollars, e.g. a lot... of money.", "5 more?", "A line",
        "and another",
    ]  # fmt: skip
    assert sentences_of(" \n ") == []


def test_documents_know_their_tokens_and_bytes():
    documents = Documents.from_texts(["aé", "", "b"], Letters())
    assert [documents.tokens[i] for i in range(3)] == [[97, 233], [], [98]]
    assert documents.bytes.tolist() == [3, 0, 1]
    with pytest.raises(QkvError, match="no document"):
        Documents.from_texts([], Letters())


def test_many_texts_are_encoded_some_at_a_time():
    asked = []

    class Counting(Letters):
        def encode(self, texts):
            asked.append(len(texts))
            return super().encode(texts)

    rows = encode_rows(["ab"] * 2500, Counting())
    assert len(rows) == 2500
    assert rows[2499] == [97, 98]
    assert max(asked) <= 1024
