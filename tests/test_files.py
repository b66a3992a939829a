import os

import pytest

from qkv.errors import QkvError
from qkv.files import write_whole


def test_makes_the_folder_and_leaves_only_the_file(tmp_path):
    path = write_whole(tmp_path / "new" / "folder" / "page.html", b"whole")
    assert path.read_bytes() == b"whole"
    assert os.listdir(path.parent) == ["page.html"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = write_whole(tmp_path / "page.html", b"old")

    def full_disk(source, destination):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(QkvError, match=r"page\.html.*no space left on device"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_folder_in_the_place_of_the_file_is_a_clear_error(tmp_path):
    with pytest.raises(QkvError, match="Cannot write"):
        write_whole(tmp_path, b"content")


def test_a_file_in_the_place_of_the_folder_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(QkvError, match="Cannot write"):
        write_whole(tmp_path / "file" / "page.html", b"content")
