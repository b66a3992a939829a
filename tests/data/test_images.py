"""Files of every kind and every fault: the right picture, or one sentence."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from qkv.data.images import MOST_PIXELS, read_image
from qkv.errors import QkvError

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def picture(width: int = 24, height: int = 16) -> Image.Image:
    """Colours that go from left to right and from top to bottom, so that a turned picture is another one."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([x, y, 255 - x], -1).astype(np.uint8))


def content(image: Image.Image, format: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def png(width: int, height: int, rows: bytes) -> bytes:
    """A PNG that says it has this many pixels, with these rows in it."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM"])
def test_an_exact_format_gives_the_very_pixels(format: str, tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(content(picture(), format))
    assert np.array_equal(read_image(tmp_path / "picture"), picture())


@pytest.mark.parametrize("format", ["JPEG", "WEBP", "JPEG2000", "GIF"])
def test_other_formats_give_about_the_same_picture(format: str) -> None:
    read = read_image(content(picture(), format))
    assert read.mode == "RGB"
    assert np.abs(np.asarray(read, float) - np.asarray(picture(), float)).mean() < 12


def test_transparent_pixels_are_white() -> None:
    layer = Image.new("RGBA", (2, 1), (255, 0, 0, 255))
    layer.putpixel((1, 0), (0, 0, 0, 0))
    read = read_image(content(layer, "PNG"))
    assert [read.getpixel((0, 0)), read.getpixel((1, 0))] == [RED, (255, 255, 255)]
    half = read_image(content(Image.new("RGBA", (1, 1), (255, 0, 0, 128)), "PNG")).getpixel((0, 0))
    assert half == (255, 127, 127)


def test_transparency_beside_greys_a_palette_and_a_single_colour_is_seen() -> None:
    greys = Image.new("LA", (1, 1), (0, 0))
    assert read_image(content(greys, "PNG")).getpixel((0, 0)) == (255, 255, 255)
    palette = Image.new("P", (2, 1))
    palette.putpalette([*RED, *GREEN])
    palette.putpixel((1, 0), 1)
    read = read_image(content(palette, "PNG", transparency=0))
    assert [read.getpixel((0, 0)), read.getpixel((1, 0))] == [(255, 255, 255), GREEN]
    plain = Image.new("RGB", (1, 1), BLUE)
    assert read_image(content(plain, "PNG", transparency=BLUE)).getpixel((0, 0)) == (255, 255, 255)


def test_a_large_transparent_picture_is_laid_over_white_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = picture(30, 20).convert("RGBA")
    layer.putalpha(Image.fromarray(np.arange(600).reshape(20, 30).astype(np.uint8)))
    whole = Image.alpha_composite(Image.new("RGBA", layer.size, (255, 255, 255, 255)), layer).convert("RGB")
    monkeypatch.setattr("qkv.data.images.LAYER", 70)
    for image in (layer, layer.convert("LA"), layer.quantize(20)):
        assert read_image(image).size == (30, 20)
    assert np.array_equal(read_image(layer), whole)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "La", "PA", "P", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    read = read_image(Image.new(mode, (3, 2)))
    assert (read.mode, read.size) == ("RGB", (3, 2))


def test_printing_inks_become_light() -> None:
    assert read_image(content(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "TIFF")).getpixel((0, 0)) == RED
    assert read_image(content(Image.new("CMYK", (8, 8), (0, 0, 0, 0)), "JPEG")).getpixel((0, 0)) == (255, 255, 255)


def test_greys_of_sixteen_bits_and_fractions_are_scaled_and_not_cut() -> None:
    deep = Image.fromarray(np.array([[0, 257 * 100, 65535]], np.uint16))
    for source in (deep, content(deep, "PNG"), content(deep, "TIFF")):
        assert np.asarray(read_image(source))[0, :, 0].tolist() == [0, 100, 255]
    fractions = Image.fromarray(np.array([[0, 0.5, 1]], np.float32))
    assert np.asarray(read_image(content(fractions, "TIFF")))[0, :, 0].tolist() == [0, 128, 255]


@pytest.mark.parametrize("value", [np.nan, 2.0, -0.5])
def test_fractions_that_are_no_greys_are_refused(value: float) -> None:
    with pytest.raises(QkvError, match="greys that are not from 0 to 1"):
        read_image(Image.fromarray(np.full((2, 2), value, np.float32)))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_stands_upright(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = content(picture(), "PNG", exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(stored)))
    assert np.array_equal(read_image(stored), expected)
    assert read_image(stored).size == ((16, 24) if orientation > 4 else (24, 16))


def test_an_orientation_that_makes_no_sense_changes_nothing() -> None:
    exif = Image.Exif()
    exif[0x0112] = 99
    assert np.array_equal(read_image(content(picture(), "PNG", exif=exif)), picture())
    broken = content(picture(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff" + b"\1" * 20)
    assert read_image(broken).size == (24, 16)


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG", "TIFF"])
def test_an_animation_is_its_first_frame(format: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN, BLUE)]
    options = {"lossless": True} if format == "WEBP" else {}
    moving = content(frames[0], format, save_all=True, append_images=frames[1:], **options)
    assert read_image(moving).getpixel((4, 4)) == RED


def test_a_wrong_suffix_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(content(picture(), "PNG"))
    assert np.array_equal(read_image(tmp_path / "photo.jpg"), picture())


@pytest.mark.parametrize("width", [1, 10_000])
def test_a_very_thin_picture_is_a_picture(width: int) -> None:
    assert read_image(content(Image.new("RGB", (width, 10_001 - width)), "PNG")).width == width


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    for width, height in ((9_000, 9_000), (20_000, 20_000), (2**31 - 1, 1), (60_000, 60_000)):
        with pytest.raises(QkvError, match="pixels"):
            read_image(png(width, height, bytes(1000)))
    assert MOST_PIXELS < 9_000**2
    with pytest.raises(QkvError, match=r"24 × 16 pixels, more than the 100"):
        read_image(content(picture(), "PNG"), most_pixels=100)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP"])
def test_a_file_that_was_cut_short_is_told(format: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    whole = content(Image.fromarray(noise), format)
    for kept in (0.3, 0.6, 0.9):
        with pytest.raises(QkvError, match=r"broken or was cut short|no image|empty"):
            read_image(whole[: int(len(whole) * kept)])


def test_what_is_no_image_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.jpg").write_text("not a picture")
    (tmp_path / "drawing.eps").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    for name, told in [
        ("empty.png", "is empty: 0 bytes"),
        ("text.jpg", "is no image that can be read"),
        ("drawing.eps", "is no image that can be read"),
        ("absent.png", "There is no image file"),
        (".", "is a folder"),
    ]:
        with pytest.raises(QkvError, match=told):
            read_image(tmp_path / name)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000"])
def test_damaged_bytes_give_a_picture_or_a_sentence(format: str) -> None:
    """Noise in every part of a file, again and again: nothing but a QkvError may come out."""
    whole = np.frombuffer(content(picture(), format), np.uint8)
    draw = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        damaged = whole.copy()
        places = draw.integers(0, len(whole) if draw.random() < 0.5 else 40, draw.integers(1, 6)) % len(whole)
        damaged[places] = draw.integers(0, 256, len(places))
        try:
            assert read_image(damaged.tobytes()).mode == "RGB"
        except QkvError:
            refused += 1
    assert refused
