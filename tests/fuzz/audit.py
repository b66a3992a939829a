"""What may not happen while a file is read: a hook into the interpreter that sees it and stops it.

Python tells its audit hooks of everything that runs code, opens files or sockets and starts processes [PEP 578]. A hook
stays for as long as its process, so it is put only into processes of its own, and `watching` says when it looks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Events by their beginnings. `exec` is the execution of a code object, `compile` the making of one from text.
FORBIDDEN = (
    "exec", "compile", "import", "marshal.load", "marshal.loads", "pickle.find_class", "code.__new__",
    "function.__new__",
    "socket.", "urllib.Request", "http.client.", "ftplib.", "smtplib.", "imaplib.", "poplib.", "nntplib.", "telnetlib.",
    "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile",
    "pty.spawn", "ctypes.dlopen", "ctypes.dlsym", "ctypes.call_function", "ctypes.cdata", "sys.addaudithook",
    "sys.setprofile", "sys.settrace", "os.putenv", "os.unsetenv", "webbrowser.open", "sqlite3.", "mmap.__new__.write",
    "setopencodehook", "cpython.run_", "signal.pthread_kill", "syslog.",
)  # fmt: skip
# What changes files, with the places of the paths among its arguments.
CHANGES_FILES = {
    "os.remove": (0,), "os.rename": (0, 1), "os.mkdir": (0,), "os.rmdir": (0,), "os.truncate": (0,), "os.link": (0, 1),
    "os.symlink": (1,), "os.chmod": (0,), "os.chown": (0,), "os.utime": (0,), "os.setxattr": (0,),
    "shutil.rmtree": (0,),
    "shutil.move": (0, 1), "shutil.copyfile": (1,), "shutil.copytree": (1,), "tempfile.mkstemp": (0,),
    "tempfile.mkdtemp": (0,), "shutil.unpack_archive": (0, 1), "shutil.make_archive": (0,),
}  # fmt: skip
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Forbidden(BaseException):
    """Raised into what did something forbidden; no `except Exception` holds it back."""


class Hook:
    """Looks only while it is told to, and keeps what it saw: code could catch what it raises."""

    def __init__(self, writable: Path) -> None:
        self.writable = os.path.realpath(writable)
        self.looks = False
        self.seen: list[str] = []
        sys.addaudithook(self._see)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.looks = True
        try:
            yield
        finally:
            self.looks = False

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.looks:
            return
        if event == "open":
            wrong = self._opens_wrongly(*arguments)
        elif event in CHANGES_FILES:
            wrong = any(self._is_outside(arguments[place]) for place in CHANGES_FILES[event])
        else:
            wrong = event.startswith(FORBIDDEN)
        if wrong:
            self.looks = False  # what is called from here on is the hook's own
            self.seen.append(f"{event} {arguments!r:.200}")
            raise Forbidden(self.seen[-1])

    def _opens_wrongly(self, path: Any, mode: Any, flags: Any) -> bool:
        writes = bool(isinstance(flags, int) and flags & WRITES) or (isinstance(mode, str) and set(mode) & set("wax+"))
        return bool(writes) and not isinstance(path, int) and self._is_outside(path)

    def _is_outside(self, path: Any) -> bool:
        if isinstance(path, int):
            return False  # a file that is open already
        place = os.path.realpath(os.fsdecode(path) if path is not None else ".")
        return not (place == self.writable or place.startswith(self.writable + os.sep))
