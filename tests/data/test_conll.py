"""Words one a line: sentences between blank lines, bad ones left out with their line."""

import gzip
from pathlib import Path

import pytest

from qkv.data.conll import is_conll, read_conll
from qkv.data.tagged import read_tagged
from qkv.errors import QkvError

TEXT = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\nPeter\tB-PER\nBlackburn\tI-PER\n \nalone\nword O\n\nlast O\n"


def test_sentences_and_problems(tmp_path: Path):
    file = tmp_path / "a.conll"
    file.write_bytes(b"\xef\xbb\xbf" + TEXT.encode() + b"\nbad \xff O\n")
    sentences, problems = read_conll(file)
    assert sentences == [
        (["EU", "rejects"], ["B-ORG", "O"]),
        (["Peter", "Blackburn"], ["B-PER", "I-PER"]),
        (["last"], ["O"]),
    ]
    assert [(problem.line, problem.reason) for problem in problems] == [
        (9, "the line has a word without a tag"),
        (14, "the line is not valid UTF-8"),
    ]


def test_tagged_words_come_from_such_files_too(tmp_path: Path):
    file = tmp_path / "a.iob2.gz"
    file.write_bytes(gzip.compress(TEXT.encode()))
    data = read_tagged(file)
    assert data.names == ("B-ORG", "B-PER", "I-PER", "O")
    assert data.words[0] == ["EU", "rejects"]
    known = read_tagged(file, classes=["O", "B-ORG"])
    assert known.words == [["EU", "rejects"], ["last"]]
    assert str(known.problems[0]).endswith("line 6: the tag 'B-PER' is none of O, B-ORG")
    with pytest.raises(QkvError, match=r"no sentence .* line 3: the tag 'B-ORG' is none of X"):
        read_tagged(file, classes=["X"])


def test_names_tell_the_format():
    assert is_conll("a.bio")
    assert is_conll("a.CONLL.xz")
    assert not is_conll("a.tsv")
    assert not is_conll("conll")
