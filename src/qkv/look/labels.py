"""Labels a person can see and a page can hold: blanks get a sign, control characters never reach the markup."""

from __future__ import annotations

import html
import unicodedata

LABEL_LENGTH = 24  # longer labels end in an ellipsis

_SIGNS = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥", "\u00a0": "⍽", "\u3000": "␣"}


def visible(label: str) -> str:
    """The label with every blank or control character replaced by a sign; an empty label becomes ∅."""
    return "".join(_sign(character) for character in label) or "∅"


def shortened(label: str) -> str:
    """The label as it stands beside a map: visible, and no longer than LABEL_LENGTH."""
    shown = visible(label)
    return shown if len(shown) <= LABEL_LENGTH else shown[: LABEL_LENGTH - 1] + "…"


def escaped(text: str) -> str:
    """Text that is safe inside HTML elements and quoted attributes, whatever it holds."""
    return html.escape("".join(character if _printable(character) else "\ufffd" for character in text), quote=True)


def _sign(character: str) -> str:
    if character in _SIGNS:
        return _SIGNS[character]
    if ord(character) < 0x20:
        return chr(0x2400 + ord(character))  # Unicode's pictures of control characters
    return character if _printable(character) else "\ufffd"


def _printable(character: str) -> bool:
    """Control characters (Cc) would be dropped by a browser, lone surrogates (Cs) cannot be written as UTF-8."""
    return character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs")
