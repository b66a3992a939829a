"""Whether a run is under way, was stopped, failed or is finished: `state.json` in its folder."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from qkv.files import write_json

FILE = "state.json"
State = Literal["running", "finished", "stopped", "failed"]
REASON = 300  # most letters of why a run failed


def write_state(folder: Path, state: State, reason: str = "") -> None:
    """A folder that cannot be written has been told of where it matters more, so here that is passed over."""
    process = {"host": platform.node(), "process": os.getpid(), "born": born(os.getpid())}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        write_json(folder / FILE, {"state": state, "reason": " ".join(reason.split())[:REASON], "when": now, **process})
    except OSError:
        return


def state_of(noted: Mapping[str, Any] | None, finished: bool) -> tuple[str, str]:
    """(state, why) from `state.json`, which older runs lack, and whether the history ends as it should.

    A run that says it is running, on this machine and by a process that is gone, was killed: it failed.
    """
    if finished:
        return "finished", ""
    if noted is None:
        return "stopped", ""
    state, reason = str(noted.get("state")), str(noted.get("reason") or "")
    if state == "finished":  # its history was cut short since
        return "stopped", "its history holds no end"
    if state == "running" and is_gone(noted):
        return "failed", "its process is gone: it was killed, or the machine was"
    return state, reason


def is_gone(noted: Mapping[str, Any]) -> bool:
    """Whether the process that wrote this is no more; of other machines nothing is known."""
    process = noted.get("process")
    if noted.get("host") != platform.node() or not isinstance(process, int) or sys.platform == "win32":
        return False
    try:
        os.kill(process, 0)  # asks, and does nothing
    except ProcessLookupError:
        return True
    except OSError:
        return False  # another person's
    return born(process) != noted.get("born")


def born(process: Any) -> str | None:
    """When a process began, as the system counts, for numbers of processes are given out again; None: not told."""
    try:
        told = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    return told.rpartition(")")[2].split()[19]
