"""Whole files or none: what is drawn is written under a passing name and then takes its place at once."""

from __future__ import annotations

import os
from pathlib import Path

from qkv.errors import QkvError


def write_whole(path: Path, content: bytes) -> Path:
    """Write `content` to `path`, making its folder; a reader sees the old file or the new one, never a part."""
    path = Path(path)
    passing = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            passing.write_bytes(content)
            os.replace(passing, path)
        finally:
            passing.unlink(missing_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise QkvError(f"Cannot write {path}: {reason}; name a file that can be written.") from error
    return path
