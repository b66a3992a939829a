"""Compiled programs, kept from one process to the next where nobody but this user can put any.

What is read there is run. So the folder and all above it must be this user's or the system's, and closed to others, as
ssh asks of its keys; a program is named by its content too, and one that does not bear its name is made again.
"""

from __future__ import annotations

import hashlib
import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from qkv.errors import QkvError, QkvWarning
from qkv.files import own_folder, passing_folder, replacing

KIND = "programs"
OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH
HAS_OWNERS = hasattr(os, "geteuid")  # elsewhere a person's own folder is closed to others by the system


def kept(name: str, suffix: str) -> Path | None:
    """What was kept by this name; None: nothing, or nothing that can be trusted."""
    trusted = (folder for folder in _folders(KIND) if _trouble(folder) is None)
    files = (file for folder in trusted for file in sorted(folder.glob(f"{name}.*{suffix}")))
    return next((file for file in files if _is_good(file)), None)


def keep(name: str, suffix: str, content: bytes, *, aloud: bool = True) -> Path | None:
    """Where it lies from now on, instead of any before; None: nowhere. Said `aloud` where it is not the usual place."""
    troubles: list[str] = []
    for folder in _folders(KIND):
        trouble = _trouble(folder, make=True)
        if trouble is None:
            try:
                file = _write(folder, name, suffix, content)
            except OSError as error:
                trouble = f"{folder} cannot be used ({(error.strerror or str(error)).lower()})"
            else:
                if troubles and aloud:
                    _say(f"{troubles[0]}. Compiled programs are kept in {folder} instead.")
                return file
        troubles.append(trouble)
    if aloud:
        _say(
            f"{'; '.join(troubles)}. So compiled programs are kept nowhere, and each process waits for the compiler; "
            "name a folder of your own in QKV_CACHE."
        )
    return None


def private_folder(kind: str) -> Path:
    """A folder for programs that others make and keep, made where it is missing."""
    for folder in _folders(kind):
        if _trouble(folder, make=True) is None and os.access(folder, os.W_OK):
            return folder
    raise QkvError("There is no folder here that you alone can write to: name one in QKV_CACHE.")


def _folders(kind: str) -> Iterator[Path]:
    """The usual place, then one among passing files, for who has no home or cannot write there."""
    usual = Path(os.path.realpath(own_folder(kind)))
    yield usual
    try:
        passing = Path(os.path.realpath(passing_folder(kind)))
        here = Path.cwd()  # where passing files go if there is no other place, and which may be a stranger's
    except FileNotFoundError:
        return
    if passing != usual and passing.parents[1] != here:
        yield passing


def _trouble(folder: Path, *, make: bool = False) -> str | None:
    """Why it cannot be trusted, in words: somebody else could put something there. None: nobody could.

    `make`: with all above it that is missing, closed to others whatever the umask.
    """
    try:
        for part in (*reversed(folder.parents), folder):
            if make and not part.exists():
                with suppress(FileExistsError):  # another process was quicker
                    part.mkdir(stat.S_IRWXU)
                    part.chmod(stat.S_IRWXU)
            if (why := _why_not(part, is_last=part == folder)) is not None:
                return f"{part} {why}"
        if make and HAS_OWNERS and stat.S_IMODE(folder.stat().st_mode) != stat.S_IRWXU:
            folder.chmod(stat.S_IRWXU)
    except OSError as error:
        return f"{folder} cannot be used ({(error.strerror or str(error)).lower()})"
    return None


def _why_not(part: Path, *, is_last: bool) -> str | None:
    """Of one folder on the way; those of the system are as good as our own, but for the last."""
    status = part.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return "is no folder"
    if not HAS_OWNERS:
        return None
    own, system = os.geteuid(), {0, Path("/").stat().st_uid}  # in a container root may have another number
    if status.st_uid != own and (is_last or status.st_uid not in system):
        return "belongs to somebody else"
    keeps_apart = not is_last and status.st_mode & stat.S_ISVTX  # as the folder of passing files does
    return "can be written by others" if _is_shared(status) and not keeps_apart else None


def _is_shared(status: os.stat_result) -> bool:
    """Whether others than its owner may write; a group that has nobody else in it, as many systems give one to each
    user, is no other.
    """
    shared = status.st_mode & OF_OTHERS
    if shared != stat.S_IWGRP:
        return bool(shared)
    import grp
    import pwd

    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return True
    alone = group.gr_name == owner.pw_name and set(group.gr_mem) <= {owner.pw_name}
    return not (alone and group.gr_gid == owner.pw_gid)


def _is_good(file: Path) -> bool:
    """Whether it is a file of this user's own that holds what its name says."""
    try:
        status = file.lstat()
        if not stat.S_ISREG(status.st_mode):
            return False
        if HAS_OWNERS and (status.st_uid != os.geteuid() or status.st_mode & OF_OTHERS):
            return False
        return file.name.split(".")[1] == hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return False


def _write(folder: Path, name: str, suffix: str, content: bytes) -> Path:
    file = folder / f"{name}.{hashlib.sha256(content).hexdigest()}{suffix}"
    with replacing(file) as passing:
        passing.write_bytes(content)
        passing.chmod(stat.S_IRWXU)
    for other in folder.glob(f"{name}.*{suffix}"):
        if other != file:
            other.unlink(missing_ok=True)
    return file


def _say(sentence: str) -> None:
    warnings.warn(sentence, QkvWarning, stacklevel=3)
