"""Image files → RGB pictures: any mode, upright, the first frame of an animation.

Nothing a file says of itself is believed before it is read: its kind is told by its first bytes and not by its name,
and its size is held against a limit before any pixel is decoded, so that a small file cannot ask for a large memory.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from qkv.errors import QkvError

MOST_PIXELS = 2**26  # of one picture: 8192 × 8192, which is 200 MB as RGB
LAYER = 2**20  # pixels laid over white at once
# Only what needs no program beside Pillow: an EPS file, for one, would be handed to Ghostscript.
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".jp2", ".avif")

Source = Path | str | bytes | Image.Image  # a file, its content, or a picture that is open already

TRANSPARENT = ("LA", "La", "PA", "RGBA", "RGBa")
ORIENTATION = 0x0112  # the EXIF tag
UPRIGHT = {  # what undoes each orientation but the first, which is upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# What Pillow raises for files that are not what they seem.
BROKEN = (
    OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, EOFError, AttributeError, OverflowError,
    ZeroDivisionError, NotImplementedError, RuntimeError, MemoryError, struct.error, zlib.error,
)  # fmt: skip


def read_image(source: Source, *, most_pixels: int = MOST_PIXELS) -> Image.Image:
    """A picture as RGB, upright; what is transparent becomes white."""
    shown = shown_source(source)
    with _explained(shown), _opened(source, shown) as image:
        _check_size(image, shown, most_pixels)
        image.load()
        return in_rgb(upright(image), shown)


def read_layer(source: Source, *, most_pixels: int = MOST_PIXELS) -> Image.Image:
    """A picture as RGBA, upright; what is transparent stays so."""
    shown = shown_source(source)
    with _explained(shown), _opened(source, shown) as image:
        _check_size(image, shown, most_pixels)
        image.load()
        image = upright(image)
        if image.mode not in TRANSPARENT and image.info.get("transparency") is None:
            return in_rgb(image, shown).convert("RGBA")
        return (image.convert("LA") if image.mode == "La" else image).convert("RGBA")


def upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF notes say; notes that cannot be read say nothing."""
    try:
        orientation = image.getexif().get(ORIENTATION)
    except BROKEN:
        return image
    turn = UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(turn)


def in_rgb(image: Image.Image, shown: str = "The picture") -> Image.Image:
    """The same picture in three channels of 8 bits, whatever its mode, over white where it is transparent."""
    if image.mode == "RGB" and image.info.get("transparency") is None:
        return image
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        return _from_numbers(image, shown)
    if image.mode in TRANSPARENT or image.info.get("transparency") is not None:
        return _over_white(image)
    return image.convert("RGB")


def _over_white(image: Image.Image) -> Image.Image:
    """A transparent picture on white paper, some rows at a time: three whole layers of a large one would be much."""
    whole = Image.new("RGB", image.size)
    rows = max(1, LAYER // image.width)
    for top in range(0, image.height, rows):
        part = image.crop((0, top, image.width, min(top + rows, image.height)))
        layer = (part.convert("LA") if part.mode == "La" else part).convert("RGBA")
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        whole.paste(Image.alpha_composite(white, layer).convert("RGB"), (0, top))
    return whole


def _from_numbers(image: Image.Image, shown: str) -> Image.Image:
    """Greys of 16 bits, or fractions from 0 to 1, as greys of 8 bits."""
    values = np.asarray(image).astype(np.float32)
    whole, spelled = (1.0, "from 0 to 1") if image.mode == "F" else (65535.0, "of 16 bits")
    if not (np.isfinite(values).all() and 0 <= values.min() and values.max() <= whole):
        raise QkvError(f"{shown} holds greys that are not {spelled}: rescale them first.")
    grey = (values * (255 / whole) + 0.5).astype(np.uint8)
    return Image.fromarray(grey).convert("RGB")


def shown_source(source: Source) -> str:
    """What a message calls a picture."""
    if isinstance(source, bytes):
        return f"The picture of {len(source):,} bytes"
    return "The picture" if isinstance(source, Image.Image) else str(source)


@contextmanager
def _opened(source: Source, shown: str) -> Iterator[Image.Image]:
    """The picture with its header read and no more."""
    if isinstance(source, Image.Image):
        yield source
        return
    if isinstance(source, bytes):
        stream: BinaryIO = io.BytesIO(source)
    elif Path(source).is_dir():
        raise QkvError(f"{source} is a folder: name an image file in it.")
    else:
        stream = Path(source).open("rb")  # noqa: SIM115 (closed below)
    with stream:
        if not stream.read(1):
            raise QkvError(f"{shown} is empty: 0 bytes.")
        stream.seek(0)
        yield Image.open(stream, formats=known_formats())


@cache
def known_formats() -> tuple[str, ...]:
    """Those of the formats that the Pillow of this place can read."""
    Image.init()
    return tuple(format for format in FORMATS if format in Image.OPEN)


def _check_size(image: Image.Image, shown: str, most_pixels: int) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise QkvError(f"{shown} has no pixels: it is {width} × {height}.")
    if width * height > most_pixels:
        raise QkvError(
            f"{shown} is {width:,} × {height:,} pixels, more than the {most_pixels:,} that are read: make it smaller."
        )


@contextmanager
def _explained(shown: str) -> Iterator[None]:
    """Whatever goes wrong while a file is read, in one sentence; what goes right needs no warning."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except FileNotFoundError as error:
        raise QkvError(f"There is no image file {shown}.") from error
    except PermissionError as error:
        raise QkvError(f"{shown} may not be read: its permissions forbid it.") from error
    except Image.DecompressionBombError as error:
        raise QkvError(f"{shown} says that it has more pixels than are read: make it smaller.") from error
    except UnidentifiedImageError as error:
        raise QkvError(f"{shown} is no image that can be read: give a JPEG, PNG, GIF, WebP, BMP or TIFF.") from error
    except BROKEN as error:
        reason = " ".join(str(error).split())[:80] or type(error).__name__
        raise QkvError(f"{shown} is broken or was cut short, and cannot be read as an image ({reason}).") from error
