"""Image files as strangers send them: odd ones beside the same picture plainly told, and broken ones."""

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

WHITE, RED, GREEN = (255, 255, 255), (255, 0, 0), (0, 255, 0)
ORIENTATION = 0x0112


def picture(width: int = 40, height: int = 24, seed: int = 0) -> Image.Image:
    """Colours that go from left to right and from top to bottom, with noise that is hard to pack."""
    x, y = np.meshgrid(np.linspace(0, 200, width), np.linspace(0, 200, height))
    noise = np.random.default_rng(seed).integers(0, 55, (height, width, 3))
    return Image.fromarray((np.stack([x, y, 200 - x], -1) + noise).astype(np.uint8))


def content(image: Image.Image, format: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, rows: bytes, *before: bytes) -> bytes:
    """A PNG that says it has this many pixels, with these rows in it and other chunks before them."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(before) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def webp_bomb() -> bytes:
    """A WebP whose canvas has 16,384 by 16,384 pixels."""
    size = (16384 - 1).to_bytes(3, "little")
    extended = struct.pack("<4sI", b"VP8X", 10) + bytes(4) + size + size
    body = b"WEBP" + extended + content(picture(), "WEBP", lossless=True)[12:]
    return b"RIFF" + struct.pack("<I", len(body)) + body


def gif_bomb() -> bytes:
    whole = bytearray(content(picture(), "GIF"))
    whole[6:10] = struct.pack("<HH", 65535, 65535)
    return bytes(whole)


def deep_grey() -> tuple[bytes, Image.Image]:
    """Greys of 16 bits, and the same in 8."""
    values = np.random.default_rng(1).integers(0, 256, (24, 40))
    plain = Image.fromarray(values.astype(np.uint8)).convert("RGB")
    return content(Image.fromarray((values * 257).astype(np.uint16)), "PNG"), plain


def see_through_palette() -> tuple[bytes, Image.Image]:
    """One colour of the palette is transparent, which is white on paper."""
    palette = Image.fromarray((np.arange(960).reshape(24, 40) % 2).astype(np.uint8), mode="P")
    palette.putpalette([*RED, *GREEN])
    plain = palette.convert("RGB")
    pixels = np.array(plain)
    pixels[np.asarray(palette) == 0] = WHITE
    return content(palette, "PNG", transparency=0), Image.fromarray(pixels)


def inks() -> tuple[bytes, Image.Image]:
    cyan = picture().convert("CMYK")
    return content(cyan, "TIFF"), cyan.convert("RGB")


def moving(format: str) -> tuple[bytes, Image.Image]:
    """The first of three frames is what there is to see."""
    frames = [picture(seed=seed).quantize(64).convert("RGB") for seed in range(3)]
    options = {"lossless": True} if format == "WEBP" else {}
    return content(frames[0], format, save_all=True, append_images=frames[1:], duration=50, **options), frames[0]


def turned(orientation: int) -> tuple[bytes, Image.Image]:
    """As a telephone saves what it took upright: lying, with a note of it."""
    lying = {6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270, 3: Image.Transpose.ROTATE_180}[orientation]
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return content(picture().transpose(lying), "PNG", exif=exif), picture()


def thin(width: int, height: int) -> tuple[bytes, Image.Image]:
    image = picture(width, height)
    return content(image, "PNG"), image


def with_alpha() -> tuple[bytes, Image.Image]:
    layer = picture().convert("RGBA")
    layer.putalpha(0)
    return content(layer, "WEBP", lossless=True, exact=True), Image.new("RGB", layer.size, WHITE)


# A name of the file, its content, and the same picture as a plain one.
READ: dict[str, tuple[str, Callable[[], tuple[bytes, Image.Image]]]] = {
    "one pixel wide": ("thin.png", lambda: thin(1, 10_000)),
    "one pixel high": ("low.png", lambda: thin(10_000, 1)),
    "one pixel": ("dot.png", lambda: thin(1, 1)),
    "printing inks": ("inks.tif", inks),
    "greys of 16 bits": ("deep.png", deep_grey),
    "a transparent colour of a palette": ("palette.png", see_through_palette),
    "transparent everywhere": ("alpha.webp", with_alpha),
    "an animated GIF": ("moving.gif", lambda: moving("GIF")),
    "an animated WebP": ("moving.webp", lambda: moving("WEBP")),
    "turned to the left": ("left.png", lambda: turned(6)),
    "turned to the right": ("right.png", lambda: turned(8)),
    "upside down": ("down.png", lambda: turned(3)),
    "another format than its name says": ("photo.jpg", lambda: (content(picture(), "BMP"), picture())),
}

# A name of the file, its content (None: a folder), and what is told of it.
REFUSED: dict[str, tuple[str, Callable[[], bytes | None], str]] = {
    "a JPEG cut short": ("cut.jpg", lambda: content(picture(), "JPEG")[:-200], "broken or was cut short"),
    "the beginning of a JPEG": ("head.jpg", lambda: content(picture(), "JPEG")[:30], "broken or was cut short"),
    "a PNG cut short": ("cut.png", lambda: content(picture(), "PNG")[:-200], "broken or was cut short"),
    "a PNG of many pixels": ("bomb.png", lambda: png(50_000, 50_000, bytes(10**6)), "pixels"),
    "a PNG of too many pixels by little": ("large.png", lambda: png(8_193, 8_192, bytes(10**6)), "pixels"),
    "a PNG with a long note": (
        "note.png",
        lambda: png(4, 4, bytes(52), chunk(b"zTXt", b"note\0\0" + zlib.compress(bytes(10**7), 9))),
        "cannot be read as an image",
    ),
    "a GIF of many pixels": ("bomb.gif", gif_bomb, "pixels"),
    "a WebP of many pixels": ("bomb.webp", webp_bomb, "pixels"),
    "a text": ("text.jpg", lambda: b"This is no picture.\n" * 9, "is no image that can be read"),
    "a program for a printer": ("draw.jpg", lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no image"),
    "an empty file": ("empty.jpg", lambda: b"", "is empty: 0 bytes"),
    "a folder": ("folder.jpg", lambda: None, "is a folder"),
}


def place(folder: Path, name: str, written: bytes | None) -> Path:
    file = folder / name
    if written is None:
        file.mkdir()
    else:
        file.write_bytes(written)
    return file
