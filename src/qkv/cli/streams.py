"""Standard streams as a command finds them: closed, or in an encoding that lacks what is to be written."""

import io
import os
import sys

from qkv.errors import QkvError

WANTED = "PYTHONIOENCODING"  # by which a person names an encoding: latin-1, or latin-1:replace


def ready_streams(answers: bool) -> None:
    """Nothing that is told later fails or is lost: every stream is open, and every letter can be written.

    A terminal shows what its encoding has. A file or a pipe gets UTF-8 whatever the locale, as inputs are UTF-8: an
    answer in any language comes out whole and can be read again. Where an encoding lacks a letter, its escape stands
    there (`\\u2192`), which says what it was; so in one that a person names in PYTHONIOENCODING.

    answers: whether the command's result is what it prints; then a closed standard output is refused at once.
    """
    _open_closed()
    closed = sys.stdout is None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (as long as the process lives)
    encoding, _, errors = ("" if sys.flags.ignore_environment else os.environ.get(WANTED, "")).partition(":")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a notebook's is not, and takes any letter
            chosen = None if encoding or stream.isatty() else "utf-8"
            stream.reconfigure(encoding=chosen, errors=errors or "backslashreplace")
    if closed and answers:
        raise QkvError(f"Standard output is closed: send it to a file, to a pipe, or to nowhere ({os.devnull}).")


def _open_closed() -> None:
    """The numbers of closed streams lead nowhere, so that no file gets one: libraries in C write to 1 and 2."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
