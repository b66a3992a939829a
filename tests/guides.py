"""The guides of docs/, as tests read them: what stands in their blocks of code."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def blocks(guide: str, language: str) -> list[str]:
    """The blocks of one language in a page such as `runs.md`."""
    text = (DOCS / guide).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)
