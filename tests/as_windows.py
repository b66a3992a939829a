"""A process that pretends to be on Windows, as far as one on Linux can: `python -m tests.as_windows LINES`.

What Windows has not is taken away (modules, functions, signals), and files behave as there: none that is open or mapped
is moved, replaced or deleted, nothing is renamed onto another, no folder is opened, only what was opened to be written
is brought to the disk, and names have no colon. It reads from Linux what this process has open. What it cannot pretend:
backslashes in paths, line ends, and the other libraries, which are imported before and know where they are.
"""

import builtins
import errno
import fcntl
import json
import mmap
import multiprocessing
import multiprocessing.popen_spawn_posix
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

MODULES = ("fcntl", "grp", "pwd", "resource", "syslog", "termios", "tty")
FUNCTIONS = (
    "fork", "forkpty", "getegid", "geteuid", "getgid", "getgroups", "getloadavg", "getpgid", "getpgrp", "getuid",
    "killpg", "mkfifo", "nice", "posix_fadvise", "posix_fallocate", "pread", "pwrite", "register_at_fork",
    "sched_getaffinity", "sched_setaffinity", "setpgid", "setsid", "statvfs", "sysconf", "sysconf_names", "uname",
    "wait3", "wait4", "chown", "fchmod", "fchown", "lchown",
)  # fmt: skip
SIGNALS = ("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGSTOP", "SIGTSTP", "SIGUSR1", "SIGUSR2")
OF_MEMORY = ("MADV_HUGEPAGE", "MAP_ANONYMOUS", "MAP_ANON", "MAP_PRIVATE", "MAP_SHARED")
FORBIDDEN = set('<>:"|?*')


def in_use(path: Any) -> bool:
    """Whether this process has a file open or mapped, or one in this folder."""
    wanted = os.path.realpath(os.fsdecode(path))
    held = [os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd") if _is_open(each)]
    with builtins.open("/proc/self/maps", encoding="utf-8") as maps:
        held += [line.split(maxsplit=5)[5].rstrip("\n") for line in maps if line.count("/")]
    return any(each == wanted or each.startswith(f"{wanted}/") for each in held)


def _is_open(number: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{number}")


def refuse(number: int, path: Any) -> None:
    raise OSError(number, f"{os.strerror(number)} (as on Windows)", path)


def watch(event: str, given: tuple[Any, ...]) -> None:
    """Python tells of whatever it does to files before it does it."""
    if event == "open" and isinstance(given[0], str | bytes) and not os.fsdecode(given[0]).startswith("/proc"):
        path, _, flags = given
        if flags & os.O_CREAT and FORBIDDEN & set(os.path.basename(os.fsdecode(path))):
            refuse(errno.EINVAL, path)
        if not flags & os.O_CREAT and flags & os.O_TMPFILE != os.O_TMPFILE and os.path.isdir(path):
            refuse(errno.EACCES, path)
    elif event == "os.mkdir" and FORBIDDEN & set(os.path.basename(os.fsdecode(given[0]))):
        refuse(errno.EINVAL, given[0])
    elif event in ("os.remove", "os.rename"):
        for path in given[: 1 if event == "os.remove" else 2]:
            if in_use(path):
                refuse(errno.EACCES, path)


def fsync(descriptor: int, really: Any = os.fsync) -> None:
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        refuse(errno.EBADF, None)
    really(descriptor)


def rename(old: Any, new: Any, really: Any = os.rename) -> None:
    if os.path.lexists(new):
        refuse(errno.EEXIST, new)
    really(old, new)


def replace(old: Any, new: Any, really: Any = os.replace) -> None:
    if os.path.isdir(new):
        refuse(errno.EACCES, new)
    really(old, new)


def kill(process: int, number: int) -> None:
    raise AssertionError(f"Windows would have ended process {process}, whatever signal {number} is.")


class Locks:
    """In the place of `msvcrt`: a lock is had on the second try, as where another process had it for ten seconds."""

    LK_LOCK = 1

    def __init__(self) -> None:
        self.tries = 0

    def locking(self, descriptor: int, mode: int, count: int) -> None:
        assert (mode, count) == (self.LK_LOCK, 1)
        self.tries += 1
        if self.tries == 1:
            refuse(errno.EDEADLK, None)
        fcntl.lockf(descriptor, fcntl.LOCK_EX)


def pretend() -> None:
    """From here on. What ends processes of one's own works as it does there, by other means."""
    really_kill = os.kill
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    sys.modules["msvcrt"] = Locks()  # type: ignore[assignment]
    for holder, names in ((os, FUNCTIONS), (signal, SIGNALS), (mmap, OF_MEMORY)):
        for name in names:
            if hasattr(holder, name):
                delattr(holder, name)
    os.fsync, os.rename, os.replace, os.kill = fsync, rename, replace, kill
    subprocess.Popen.kill = lambda self: really_kill(self.pid, 9)  # type: ignore[method-assign]
    multiprocessing.popen_spawn_posix.Popen.kill = lambda self: really_kill(self.pid, 9)  # type: ignore[method-assign]
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    multiprocessing.set_start_method("spawn")
    sys.platform = "win32"
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="cp1252", errors="strict")  # type: ignore[union-attr]
    sys.addaudithook(watch)


def main(lines: list[list[str]]) -> int:
    """The code of the first command that fails; several run in one process, since torch takes seconds to start."""
    import numpy  # noqa: F401
    import PIL.Image  # noqa: F401
    import rich.console
    import rich.progress  # noqa: F401
    import safetensors.torch  # noqa: F401
    import tokenizers  # noqa: F401
    import torch  # noqa: F401
    import typer  # noqa: F401

    sysconfig.get_config_vars()
    pretend()
    import qkv  # noqa: F401  (as in a program)
    from qkv.cli.main import main as command

    for line in lines:
        sys.argv = ["qkv", *line]
        if code := command():
            print(f"{line} ends with {code}", file=sys.stderr)
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
