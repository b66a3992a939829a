"""Text on images, in as many scripts as the machine has glyphs for.

Pillow's bundled font knows little more than ASCII. A text it cannot draw is tried in the fonts that most systems have;
a character that none of them has is written as its escape, which is ugly but legible, where a hollow box is not.
"""

from __future__ import annotations

from functools import cache
from typing import cast

from PIL import Image, ImageDraw, ImageFont

_SYSTEM_FONTS = (
    "DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "LiberationSans-Regular.ttf",
    "Arial Unicode.ttf",
    "Arial.ttf",
    "NotoSansCJK-Regular.ttc",
    "msgothic.ttc",
    "PingFang.ttc",
)
_NO_CHARACTER = "\uffff"  # Unicode promises that this will never be one, so every font draws its box for it
_PLAIN = {"▁": "_", "␣": "_", "…": "...", "×": "x", "⏎": "\\n", "⇥": "\\t", "∅": "(empty)"}


class Pen:
    """Measures and draws text of one size."""

    def __init__(self, size: int) -> None:
        self.size = size
        # Pillow answers a wish for a size with a scalable font, whatever its annotation allows.
        self._fonts = [cast(ImageFont.FreeTypeFont, ImageFont.load_default(size=size))]
        for name in _SYSTEM_FONTS:
            try:
                self._fonts.append(ImageFont.truetype(name, size))
            except OSError:  # not on this machine
                continue

    def width(self, text: str) -> int:
        text, font = self._readable(text)
        return round(font.getlength(text))

    def write(
        self, image: Image.Image, at: tuple[int, int], text: str, ink: tuple[int, int, int], anchor: str = "lm"
    ) -> None:
        """Draw `text` at a point; `anchor` as Pillow names it: l, m, r across and m, s down."""
        text, font = self._readable(text)
        ImageDraw.Draw(image).text(at, text, fill=ink, font=font, anchor=anchor)

    def write_upwards(self, image: Image.Image, foot: tuple[int, int], text: str, ink: tuple[int, int, int]) -> None:
        """Draw `text` turned by a quarter so that it starts at `foot` and runs up, centred on it across."""
        text, font = self._readable(text)
        stamp = Image.new("L", (round(font.getlength(text)) + 2, self.size * 2), 0)
        ImageDraw.Draw(stamp).text((0, self.size), text, fill=255, font=font, anchor="lm")
        turned = stamp.rotate(90, expand=True)
        image.paste(ink, (foot[0] - turned.width // 2, foot[1] - turned.height), turned)

    def _readable(self, text: str) -> tuple[str, ImageFont.FreeTypeFont]:
        """The text with the first font that has all of its characters, or the text spelt so that one has."""
        plain = "".join(_PLAIN.get(character, character) for character in text)
        for spelling, font in [(text, self._fonts[0]), *((plain, font) for font in self._fonts)]:
            if all(_has(font, character) for character in spelling):
                return spelling, font
        font = max(self._fonts, key=lambda font: sum(_has(font, character) for character in plain))
        escapes = (c if _has(font, c) else c.encode("unicode_escape").decode() for c in plain)
        return "".join(escapes), font


@cache
def pen(size: int) -> Pen:
    return Pen(size)


@cache
def _has(font: ImageFont.FreeTypeFont, character: str) -> bool:
    """Whether `font` has a glyph of its own for `character`: one that is not its box for a missing one."""
    if character.isspace():
        return True
    missing, drawn = font.getmask(_NO_CHARACTER), font.getmask(character)
    return drawn.size != missing.size or bytes(drawn) != bytes(missing)
