"""The one error a person sees: a sentence that says what was wrong and what would be right."""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 2000  # letters of a sentence: what a file says may be of any length, and is quoted


class QkvError(Exception):
    """Bad input or a broken file. The command line prints it on one line and exits with code 2."""

    def __str__(self) -> str:
        told = super().__str__()
        return told if len(told) <= LONGEST else f"{told[: LONGEST // 2]} […] {told[-LONGEST // 4 :]}"


class QkvWarning(Warning):
    """Something that is allowed and hardly meant. The command line prints it on one line and goes on."""


def nearest_or_all(name: str, known: Iterable[str]) -> str:
    """How to end the sentence about a name that is not known: by the one that was meant, or by all there are."""
    known = list(known)
    near = get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}."


def legible(text: str) -> str:
    """A text that every file can hold.

    Where a system's encoding does not fit, Python keeps the bytes of a file's name as halves of signs, which are no
    text: they are read as UTF-8, as most systems have it, and spelled as escapes if they are not that either.
    """
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # the other halves, which a name on Windows may have
        return text.encode("utf-8", "backslashreplace").decode()
