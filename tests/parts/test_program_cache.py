"""Compiled programs are taken only where this user alone can have put them; they are kept somewhere if they can be."""

import grp
import os
import pwd
import stat
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from qkv.errors import QkvError, QkvWarning
from qkv.parts.program_cache import keep, kept, private_folder

NOBODY = 65534


@pytest.fixture(autouse=True)
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The usual folder; what is kept among passing files is in `passing` beside it."""
    (tmp_path / "passing").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "passing"))
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "qkv" / "programs"


def modes(folder: Path, above: Path) -> set[int]:
    return {stat.S_IMODE(part.stat().st_mode) for part in (folder, *folder.parents) if above in part.parents}


@contextmanager
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", QkvWarning)
        yield


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_what_is_kept_is_found_and_closed_to_others(umask: int, usual: Path, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        with quietly():
            file = keep("sum-1", ".so", b"a program")
            assert kept("sum-1", ".so") == file
    finally:
        os.umask(before)
    assert file is not None
    assert file.parent == usual
    assert file.read_bytes() == b"a program"
    assert modes(file, tmp_path) == {0o700}
    assert kept("sum-2", ".so") is None
    assert kept("sum-1", ".cubin") is None


def test_another_takes_its_place(usual: Path) -> None:
    keep("sum-1", ".so", b"old")
    file = keep("sum-1", ".so", b"new")
    assert list(usual.iterdir()) == [file]
    assert kept("sum-1", ".so") == file


def written_by_others(file: Path) -> None:
    file.chmod(0o666)


def of_somebody_else(file: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only the system's user can give files away")
    os.chown(file, NOBODY, NOBODY)


def another_content(file: Path) -> None:
    file.write_bytes(b"planted")


def a_link(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


@pytest.mark.parametrize("plant", [written_by_others, of_somebody_else, another_content, a_link])
def test_a_planted_file_is_not_taken_and_made_again(plant, usual: Path) -> None:
    file = keep("sum-1", ".so", b"a program")
    assert file is not None
    plant(file)
    assert kept("sum-1", ".so") is None
    with quietly():
        assert keep("sum-1", ".so", b"a program") == file
    assert kept("sum-1", ".so") == file
    assert stat.S_IMODE(file.lstat().st_mode) == 0o700
    assert file.read_bytes() == b"a program"


def shared_by_all(folder: Path) -> None:
    folder.chmod(0o777)


def all_above_shared(folder: Path) -> None:
    folder.parent.chmod(0o777)


def shared_but_files(folder: Path) -> None:
    folder.chmod(0o1777)


def folder_of_somebody_else(folder: Path) -> None:
    of_somebody_else(folder)


def above_of_somebody_else(folder: Path) -> None:
    of_somebody_else(folder.parent)


@pytest.mark.parametrize(
    ("plant", "told"),
    [
        (shared_by_all, "programs can be written by others"),
        (all_above_shared, "qkv can be written by others"),
        (shared_but_files, "programs can be written by others"),
        (folder_of_somebody_else, "programs belongs to somebody else"),
        (above_of_somebody_else, "qkv belongs to somebody else"),
    ],
)
def test_a_folder_that_others_can_change_is_not_used(plant, told: str, usual: Path, tmp_path: Path) -> None:
    """What lies there may be planted, even what bears its name; another folder is used, and it is said once."""
    keep("sum-1", ".so", b"a program")
    plant(usual)
    assert kept("sum-1", ".so") is None
    with pytest.warns(QkvWarning, match=rf"{told}\. Compiled programs are kept in .*passing") as said:
        file = keep("sum-1", ".so", b"a program")
    assert len(said) == 1
    assert file is not None
    assert file.is_relative_to(tmp_path / "passing")
    with quietly():
        assert kept("sum-1", ".so") == file


def test_passing_files_of_all_users_keep_apart(tmp_path: Path, usual: Path) -> None:
    """As in the folder of a system: anybody may put something there, and nobody may change what is another's."""
    (tmp_path / "passing").chmod(0o1777)
    usual.mkdir(parents=True)
    usual.chmod(0o777)
    with pytest.warns(QkvWarning):
        assert keep("sum-1", ".so", b"a program") is not None


def test_a_group_of_oneself_is_no_other(usual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep("sum-1", ".so", b"a program")
    usual.chmod(0o770)
    own = usual.stat()
    person = SimpleNamespace(pw_name="ann", pw_gid=own.st_gid)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: person)
    groups = (("ann", [], True), ("ann", ["ann"], True), ("ann", ["bob"], False), ("all", [], False))
    for name, members, alone in groups:
        group = SimpleNamespace(gr_name=name, gr_mem=members, gr_gid=own.st_gid)
        monkeypatch.setattr(grp, "getgrgid", lambda number, group=group: group)
        assert (kept("sum-1", ".so") is not None) == alone


@contextmanager
def as_nobody(folder: Path) -> Iterator[None]:
    """Inside, permissions hold: the system's user has them all."""
    if os.geteuid() != 0:
        yield
        return
    for each in (folder, *folder.iterdir()):
        os.chown(each, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("mode", [0o000, 0o500])
def test_a_folder_that_cannot_be_searched_or_written_is_said(mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:  # which anybody may enter
        closed, passing = Path(place) / "closed", Path(place) / "passing"
        closed.mkdir()
        passing.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(passing))
        monkeypatch.setenv("QKV_CACHE", str(closed))
        with as_nobody(Path(place)):
            closed.chmod(mode)
            assert kept("sum-1", ".so") is None
            with pytest.warns(QkvWarning, match=r"closed.* cannot be used \(permission denied\)\. .*passing") as said:
                file = keep("sum-1", ".so", b"a program")
            assert len(said) == 1
            assert file is not None
            with quietly():
                assert kept("sum-1", ".so") == file
            closed.chmod(0o700)


def test_where_nothing_can_be_kept_it_is_said_once(usual: Path, tmp_path: Path) -> None:
    usual.parent.mkdir(parents=True)
    usual.write_text("a file", encoding="utf-8")
    (tmp_path / "passing").chmod(0o777)
    told = r"programs is no folder; .*passing can be written by others\. So .* kept nowhere"
    with pytest.warns(QkvWarning, match=told) as said:
        assert keep("sum-1", ".so", b"a program") is None
    assert len(said) == 1
    assert kept("sum-1", ".so") is None


def test_a_full_disk_leaves_nothing(usual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.warns(QkvWarning, match="no space left on device"):
        assert keep("sum-1", ".so", b"a program") is None
    assert list(usual.iterdir()) == []


def test_programs_of_others_are_kept_likewise(usual: Path, tmp_path: Path) -> None:
    assert private_folder("theirs") == usual.with_name("theirs")
    usual.with_name("theirs").chmod(0o777)
    assert private_folder("theirs").is_relative_to(tmp_path / "passing")
    (tmp_path / "passing").chmod(0o777)
    with pytest.raises(QkvError, match="name one in QKV_CACHE"):
        private_folder("theirs")


def test_a_user_without_a_home_has_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("QKV_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with quietly():
        file = keep("sum-1", ".so", b"a program")
        assert kept("sum-1", ".so") == file
    assert file is not None
    assert file.is_relative_to(tmp_path / "passing")


def test_the_folder_where_we_stand_is_no_place_for_passing_files(
    usual: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python takes it where there is no other; and a stranger's files are ours once they are unpacked."""
    monkeypatch.chdir(tmp_path / "passing")
    usual.parent.mkdir(parents=True)
    usual.write_text("a file", encoding="utf-8")
    with pytest.warns(QkvWarning, match="kept nowhere"):
        assert keep("sum-1", ".so", b"a program") is None
