"""Which commit is checked out, read from the files of git: git itself runs programs that a folder's settings name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from qkv.files import is_file

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
BRANCH = re.compile(r"ref: (refs(?:/[^/\s.][^/\s]*)+)")  # no part of it leads out of the folder of branches
LONGEST = 2**24  # bytes of what is read: a list of branches may be long


def git_commit(folder: Path) -> str | None:
    """The commit checked out in `folder`; None outside a repository, or where it is not told by plain text.

    Whether files were changed since is not told: to know that, git runs filters that the folder may name.
    """
    place = _repository(folder)
    if place is None:
        return None
    shared = place / (_text(place / "commondir") or ".")  # where the branches of all worktrees are
    head = _text(place / "HEAD") or ""
    branch = BRANCH.fullmatch(head)
    if branch is not None:
        head = _text(place / branch[1]) or _text(shared / branch[1]) or _packed(shared / "packed-refs", branch[1])
    return head if COMMIT.fullmatch(head) else None


def _repository(folder: Path) -> Path | None:
    """Where git keeps what belongs to the files of a folder: beside them or above, or where a file there says."""
    for above in (folder, *folder.parents):
        place = above / ".git"
        told = _text(place)
        if told is not None and told.startswith("gitdir: "):
            return above / told.removeprefix("gitdir: ")
        if is_file(place / "HEAD"):
            return place
    return None


def _packed(file: Path, branch: str) -> str:
    """The commit of a branch in the list of those that have no file of their own."""
    named = (line.split(" ") for line in _lines(file))
    return next((words[0] for words in named if words[1:] == [branch]), "")


def _text(file: Path) -> str | None:
    """The one line of a small file; None where there is none."""
    return next(_lines(file), None)


def _lines(file: Path) -> Iterator[str]:
    if not is_file(file):  # nothing that reading could wait for
        return
    try:
        with file.open("rb") as stream:
            yield from stream.read(LONGEST).decode("utf-8", "replace").splitlines()
    except OSError:
        return
