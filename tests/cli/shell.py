"""Commands as a text shows them, run as a shell would; `qkv` runs in this process: starting torch takes seconds."""

import os
import re
import shlex
import subprocess
from pathlib import Path

from tests.cli.command import Outcome, qkv


def commands(text: str) -> list[str]:
    """One command a line, lines that end in a backslash joined with the next."""
    joined = re.sub(r"\\\n\s*", "", text)
    return [line.strip() for line in joined.splitlines() if line.strip()]


def paste(command: str, folder: Path, *more: str) -> Outcome:
    """Run a command in a folder; `more` arguments are added to a `qkv` command."""
    before, _, after = command.rpartition("| ") if "| qkv" in command else ("", "", command)
    given = b""
    if before or not after.startswith("qkv "):
        shell = subprocess.run(["bash", "-c", before or after], cwd=folder, capture_output=True, check=True)
        given = shell.stdout
    if not after.startswith("qkv "):
        return Outcome(0, given.decode(), "")
    came_from = Path.cwd()
    os.chdir(folder)
    try:
        return qkv(*shlex.split(after)[1:], *more, stdin=given)
    finally:
        os.chdir(came_from)
