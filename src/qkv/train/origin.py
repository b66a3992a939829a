"""Who started a run: the command of a shell with all of its options, or Python; and who is told what happens."""

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from qkv.errors import legible
from qkv.train.watchers import Watcher

CONFIGURATION = "train.toml"  # beside run.json: all options of the command, to be given back as --config


PLAIN_ON_WINDOWS = re.compile(r"[\w@%+=:,./\\-]+", re.ASCII)


def for_shell(*words: object) -> str:
    """Words as the shell of this system takes them: on Windows cmd.exe knows no single quotes."""
    told = [legible(str(word)) for word in words]
    system: str = sys.platform
    if system != "win32":
        return shlex.join(told)
    return " ".join(each if PLAIN_ON_WINDOWS.fullmatch(each) else '"' + each.replace('"', '\\"') + '"' for each in told)


@dataclass(frozen=True)
class Origin:
    """A command as it was typed, all of its options as TOML, and what repeats it; none of these for Python."""

    command: Sequence[str] | None = None
    configuration: str | None = None
    repeat: str | None = None
    watchers: Sequence[Watcher] = ()

    def record(self) -> dict[str, Any]:
        """What `run.json` says of it."""
        if self.command is None:
            return {"by": "python"}
        return {"by": "qkv", "command": list(self.command), "repeat": self.repeat}


_CURRENT: ContextVar[Origin] = ContextVar("origin", default=Origin())  # noqa: B039 (frozen)


def current_origin() -> Origin:
    """Where a run that begins now comes from; Python, where nothing else was said."""
    return _CURRENT.get()


@contextmanager
def started_by(origin: Origin) -> Iterator[None]:
    """Runs that begin within the block say that this is where they came from."""
    token = _CURRENT.set(origin)
    try:
        yield
    finally:
        _CURRENT.reset(token)
