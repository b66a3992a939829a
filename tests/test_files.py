import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from qkv.errors import QkvError
from qkv.files import (
    checksum_of_json,
    copy_into,
    own_folder,
    read_json,
    read_notes,
    read_tensors,
    write_json,
    write_tensors,
    write_whole,
)


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


def test_a_folder_named_as_the_file_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(QkvError, match="it is a folder"):
        write_whole(".", b"content")


def test_tensors_can_be_read_by_whom_other_files_can_be_read(tmp_path):
    write_tensors(tmp_path / "model.safetensors", {"x": torch.zeros(2)})
    write_json(tmp_path / "config.json", {})
    modes = {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert len(modes) == 1


def test_whole_numbers_do_not_pass_for_weights():
    with pytest.raises(QkvError, match=r"int64.*float32"):
        copy_into({"x": torch.zeros(2)}, {"x": torch.zeros(2, dtype=torch.int64)}, "file")


def test_notes_stand_beside_the_tensors(tmp_path):
    write_tensors(tmp_path / "a.safetensors", {"x": torch.ones(2)}, {"config": "abc"})
    assert read_notes(tmp_path / "a.safetensors") == {"config": "abc", "format": "pt"}
    assert torch.equal(read_tensors(tmp_path / "a.safetensors")["x"], torch.ones(2))


@pytest.mark.parametrize("read", [read_tensors, read_notes])
def test_what_is_no_file_of_tensors_is_said(tmp_path, read):
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("words")
    for name, said in (("folder", "is a folder"), ("text", "not a whole safetensors file"), ("absent", "is missing")):
        with pytest.raises(QkvError, match=said):
            read(tmp_path / name)


def test_views_of_one_memory_are_written_apart(tmp_path):
    whole = torch.arange(6.0).view(3, 2)
    write_tensors(tmp_path / "a", {"whole": whole, "again": whole, "row": whole[1], "columns": whole.T})
    read = read_tensors(tmp_path / "a")
    assert torch.equal(read["again"], whole)
    assert torch.equal(read["row"], whole[1])
    assert torch.equal(read["columns"], whole.T)


def test_what_can_be_made_again_is_kept_where_caches_are(tmp_path, monkeypatch):
    for name in ("QKV_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    assert own_folder("x") == tmp_path / "home" / ".cache" / "qkv" / "x"
    for name in ("LOCALAPPDATA", "XDG_CACHE_HOME", "QKV_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name))
        assert own_folder("x") == tmp_path / name / "qkv" / "x"


def test_a_cache_is_not_another_folder_wherever_one_stands(tmp_path, monkeypatch):
    """It may be a stranger's folder, with programs in it."""
    monkeypatch.delenv("QKV_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")  # whose rules say to ignore it
    assert own_folder("x").is_relative_to(tmp_path)
    monkeypatch.setenv("QKV_CACHE", "cache")
    with pytest.raises(QkvError, match="QKV_CACHE must be a whole path, not 'cache'"):
        own_folder("x")


def test_a_user_without_a_home_has_a_cache(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    for name in ("QKV_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert own_folder("x").is_relative_to(tempfile.gettempdir())


def test_a_name_whose_bytes_are_no_text_is_written_so_that_it_can_be_read(tmp_path):
    file = tmp_path / "config.json"
    latin, ascii_locale = (
        b"caf\xe9".decode("utf-8", "surrogateescape"),
        "café 😀".encode().decode("ascii", "surrogateescape"),
    )
    told = {"labels": [latin, ascii_locale, "half\ud83d", "ü", "😀", 1.5, None], latin: True}
    write_json(file, told)
    found = read_json(file)
    assert found == {"labels": ["caf\\xe9", "café 😀", "half\\ud83d", "ü", "😀", 1.5, None], "caf\\xe9": True}
    assert checksum_of_json(found) == checksum_of_json(told)


def test_a_file_of_tensors_that_may_not_be_read_is_not_said_to_be_missing():
    with tempfile.TemporaryDirectory() as folder:  # which others may enter, unlike what pytest makes
        os.chmod(folder, 0o755)
        file = Path(folder) / "model.safetensors"
        with pytest.raises(QkvError, match="is missing"):
            read_tensors(file)
        write_tensors(file, {"x": torch.ones(2)})
        file.chmod(0)
        with nobody(), pytest.raises(QkvError, match=r"cannot be read \(Permission denied\)"):
            read_tensors(file)


@contextmanager
def nobody():
    """Within the block this process may do no more than anybody, also where the system's administrator runs it."""
    administrator = hasattr(os, "geteuid") and os.geteuid() == 0
    if administrator:
        os.seteuid(65534)
    try:
        yield
    finally:
        if administrator:
            os.seteuid(0)
