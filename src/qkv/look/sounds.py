"""What a model of sound listens to, drawn under or over the spectrum, with seconds and hertz beside it.

Shapes: h heads, t written tokens, s slots in time, r rows and c columns of patches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from qkv.generate.spoken_words import Word
from qkv.look.axes import Linear, figure
from qkv.look.colour import LEVELS, PAPER, SCREEN, Rgb, level
from qkv.look.draw import IMAGE_LIMIT
from qkv.look.fonts import pen
from qkv.look.labels import shortened
from qkv.look.picture_maps import Floats
from qkv.look.pictures import over_picture, sheet
from qkv.look.sound_maps import FrameRecord, Record, Spectrum, SpectrumRecord, SpokenRecord

WIDE, HIGH = 960, 240  # pixels of a spectrum
NARROW, LOW = 300, 110  # of one of many
LEFT, FOOT, GAP = 64, 28, 10  # room for hertz, for seconds, and between two drawings
ROW, STRIP = 20, 18  # pixels: a written token, a head
HERTZ = (125, 250, 500, 1000, 2000, 4000)
_WHITE, _INK, _SOFT = (255, 255, 255), (29, 28, 34), (107, 104, 117)
_MARK: Rgb = SCREEN[-1]
_LIT = "as bright as it was looked at: attention rollout"
_ALONE = "the rollout alone: from a quarter of an even share (pale) to four times as much"
_MOMENTS = "attention rollout: how much of each moment counts"
_WRITTEN = "where each token looked while it was written, heads that follow the speaker"


def draw_sound(record: Record) -> Image.Image:
    """The spectrum, and what was listened to in it."""
    if isinstance(record, SpectrumRecord):
        parts = _of_spectrum(record)
    elif isinstance(record, FrameRecord):
        parts = [_spectrum(record.spectrum, record.words), _caption(_MOMENTS), _hill(record.rollout(), record.spectrum)]
    else:
        parts = _of_speech(record)
    return _stacked([_title(record), *parts])


def _of_spectrum(record: SpectrumRecord) -> list[Image.Image]:
    rollout, spectrum = record.rollout(), record.spectrum
    lit = over_picture(_fitted(spectrum.picture(), WIDE, HIGH), rollout, WIDE)
    alone = _ground(rollout, WIDE, HIGH // 2)
    return [_spectrum(spectrum), _caption(_LIT), _framed(lit, spectrum), _caption(_ALONE), _framed(alone, spectrum)]


def _of_speech(record: SpokenRecord) -> list[Image.Image]:
    labels = [shortened(token) for token in record.tokens[:IMAGE_LIMIT]]
    left = max(LEFT, max(pen(14).width(label) for label in labels) + 12)
    left_out = len(record.tokens) - len(labels)
    more = f"; {left_out} more are not drawn" if left_out else ""
    rows = _rows(record.alignment()[:IMAGE_LIMIT], labels, record.spectrum, record.words, left)
    return [_spectrum(record.spectrum, record.words, left), _caption(f"{_WRITTEN}{more}", left), rows]


def draw_sound_layer(record: Record, layer: int) -> Image.Image:
    """Every head of a layer."""
    heads = record.heads(layer)
    if isinstance(record, SpectrumRecord):
        base = _fitted(record.spectrum.picture(), NARROW, LOW)
        tiles = [
            (f"head {number + 1}", _stacked([over_picture(base, each, NARROW), _ground(each, NARROW, LOW // 2)]))
            for number, each in enumerate(heads)
        ]
        return sheet(tiles, min(len(tiles), 3))
    if isinstance(record, FrameRecord):
        labels = [f"head {number + 1}" for number in range(len(heads))]
        return _rows(heads, labels, record.spectrum, record.words, LEFT, STRIP)
    tiles = [
        (f"head {number + 1}", _fitted(_heat(each), NARROW, max(LOW, min(2 * LOW, 3 * len(each)))))
        for number, each in enumerate(heads)
    ]
    return sheet(tiles, min(len(tiles), 3))


def _fitted(image: Image.Image, width: int, height: int) -> Image.Image:
    """Square values stay square where there are few of them."""
    few = width > 2 * image.width
    return image.resize((width, height), Image.Resampling.NEAREST if few else Image.Resampling.BILINEAR)


def _spectrum(spectrum: Spectrum, words: Sequence[Word] = (), left: int = LEFT) -> Image.Image:
    """With seconds and hertz; words stand above it where they are said."""
    image = _fitted(spectrum.picture(), WIDE, HIGH)
    brush = ImageDraw.Draw(image)
    if spectrum.sounding < spectrum.seconds * 0.999:
        x = round(spectrum.sounding / spectrum.seconds * WIDE)
        brush.line((x, 0, x, HIGH), fill=_MARK)
        if WIDE - x > 40:
            pen(13).write(image, (x + 6, 12), "filling", _MARK)
    for word in words:
        x = round(word.start / spectrum.seconds * WIDE)
        brush.line((x, 0, x, HIGH), fill=(255, 255, 255))
    whole = _framed(image, spectrum, left)
    return _stacked([_words(words, spectrum, left), whole]) if words else whole


def _framed(image: Image.Image, spectrum: Spectrum, left: int = LEFT) -> Image.Image:
    """Over time, with hertz at its left."""
    whole = Image.new("RGB", (left + WIDE + GAP, image.height + FOOT), _WHITE)
    whole.paste(image, (left, 0))
    brush, label = ImageDraw.Draw(whole), pen(13)
    last = 0
    for hertz in reversed(HERTZ):
        y = round((1 - spectrum.height_of(hertz)) * image.height)
        if last + 14 < y < image.height - 4:
            last = y
            brush.line((left - 5, y, left - 1, y), fill=_SOFT)
            label.write(whole, (left - 8, y), f"{hertz // 1000} kHz" if hertz >= 1000 else f"{hertz} Hz", _SOFT, "rm")
    _seconds(whole, spectrum, left, image.height)
    return whole


def _seconds(image: Image.Image, spectrum: Spectrum, left: int, top: int) -> None:
    brush, label = ImageDraw.Draw(image), pen(13)
    for mark in Linear().marks(0.0, spectrum.seconds):
        x = left + round(mark / spectrum.seconds * (WIDE - 1))
        brush.line((x, top, x, top + 4), fill=_SOFT)
        label.write(image, (min(x, left + WIDE - 12), top + 16), f"{figure(mark)} s", _SOFT, "mm")


def _words(words: Sequence[Word], spectrum: Spectrum, left: int) -> Image.Image:
    """Each at the time it begins, in as many lines as keep them apart."""
    label = pen(14)
    ends: list[int] = []
    places: list[tuple[int, int]] = []
    for word in words:
        x = min(round(word.start / spectrum.seconds * WIDE), WIDE - label.width(word.text))
        line = next((number for number, end in enumerate(ends) if end < x), len(ends))
        if line == len(ends):
            ends.append(0)
        ends[line] = x + label.width(word.text) + 8
        places.append((x, line))
    image = Image.new("RGB", (left + WIDE + GAP, 18 * len(ends) + 4), _WHITE)
    for word, (x, line) in zip(words, places, strict=True):
        label.write(image, (left + x, 10 + 18 * (len(ends) - 1 - line)), word.text, _INK)
    return image


def _hill(weights: Floats, spectrum: Spectrum, height: int = 110) -> Image.Image:
    """A weight a moment as a filled curve; twice the mean is half of the height at least. [s]"""
    image = Image.new("RGB", (WIDE, height), _WHITE)
    brush = ImageDraw.Draw(image)
    highest = max(float(weights.max()), 2 * float(weights.mean()), 1e-12)
    share = np.interp(np.linspace(0, 1, WIDE), np.linspace(0, 1, len(weights)), weights / highest)
    for x, value in enumerate(share):
        brush.line((x, height - 1 - round(float(value) * (height - 6)), x, height), fill=PAPER[int(level(value))])
    whole = Image.new("RGB", (LEFT + WIDE + GAP, height + FOOT), _WHITE)
    whole.paste(image, (LEFT, 0))
    y = height - 1 - round(float(weights.mean()) / highest * (height - 6))
    ImageDraw.Draw(whole).line((LEFT - 5, y, LEFT - 1, y), fill=_SOFT)
    pen(13).write(whole, (LEFT - 8, y), "mean", _SOFT, "rm")
    _seconds(whole, spectrum, LEFT, height)
    return whole


def _rows(
    weights: Floats, labels: Sequence[str], spectrum: Spectrum, words: Sequence[Word], left: int, row: int = ROW
) -> Image.Image:
    """A line a token or head, over time. [rows s]"""
    height = row * len(labels)
    image = _heat(weights).resize((WIDE, height), Image.Resampling.NEAREST)
    brush = ImageDraw.Draw(image)
    for word in words:
        x = round(word.start / spectrum.seconds * WIDE)
        brush.line((x, 0, x, height), fill=(214, 212, 205))
    whole = Image.new("RGB", (left + WIDE + GAP, height + FOOT), _WHITE)
    whole.paste(image, (left, 0))
    for number, label in enumerate(labels):
        pen(14 if row >= ROW else 12).write(whole, (left - 8, row * number + row // 2), label, _INK, "rm")
    ImageDraw.Draw(whole).rectangle((left, 0, left + WIDE - 1, height - 1), outline=(226, 223, 214))
    _seconds(whole, spectrum, left, height)
    return whole


def _heat(weights: Floats) -> Image.Image:
    """Each row by its own greatest weight, on the scale of all maps. [rows s]"""
    highest = weights.max(-1, keepdims=True).clip(1e-12)
    return Image.fromarray(np.array(PAPER, np.uint8)[level(weights / highest)])


def _ground(weights: Floats, width: int, height: int) -> Image.Image:
    """A map of patches against an even share: four times as much is darkest, a quarter palest. [r c]"""
    even = np.log2(weights.clip(1e-12) / max(float(weights.mean()), 1e-12)) / 4 + 0.5
    smooth = Image.fromarray(even.clip(0, 1).astype(np.float32)).resize((width, height), Image.Resampling.BILINEAR)
    steps = np.rint(np.asarray(smooth).clip(0, 1) * (LEVELS - 1)).astype(int)
    return Image.fromarray(np.array(PAPER, np.uint8)[steps])


def _title(record: Record) -> Image.Image:
    image = Image.new("RGB", (LEFT + WIDE + GAP, 36), _WHITE)
    label, text = pen(18), record.said or record.name
    while label.width(text) > WIDE and len(text) > 2:
        text = text[:-2].rstrip("…") + "…"
    label.write(image, (LEFT, 18), text, _INK)
    return image


def _caption(text: str, left: int = LEFT) -> Image.Image:
    image = Image.new("RGB", (left + WIDE + GAP, 24), _WHITE)
    pen(14).write(image, (left, 12), text, _SOFT)
    return image


def _stacked(parts: Sequence[Image.Image]) -> Image.Image:
    """One below the other."""
    whole = Image.new("RGB", (max(part.width for part in parts), sum(part.height for part in parts)), _WHITE)
    y = 0
    for part in parts:
        whole.paste(part, (0, y))
        y += part.height
    return whole
