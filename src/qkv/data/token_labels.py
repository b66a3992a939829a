"""Labels of tokens that can be read on a plot, whatever bytes they stand for."""

from qkv.data.token_kinds import BYTE_SPELLINGS

BYTE_OF = {spelling: byte for byte, spelling in enumerate(BYTE_SPELLINGS)}


def from_byte_level(token: str) -> str:
    """The text behind a byte-level token, with `\\xe2` where a character is cut in the middle."""
    if any(character not in BYTE_OF for character in token):
        return token  # not spelled in bytes: a token that was added to the vocabulary by hand
    return bytes(BYTE_OF[character] for character in token).decode(errors="backslashreplace")


def readable(text: str) -> str:
    """A label that shows what would be invisible on a plot."""
    text = text.replace(" ", "▁")
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
