"""Attention over pictures as pages and images, in one call."""

from collections.abc import Sequence
from pathlib import Path

from qkv.api.looking import checked_files
from qkv.data.images import Source
from qkv.errors import QkvError
from qkv.generate.image_readers import ImageReader, check_pictures
from qkv.look.draw import write_png
from qkv.look.picture_maps import PictureRecord, record_picture
from qkv.look.picture_page import write_picture_page
from qkv.look.pictures import draw_picture


def look_at_pictures(
    use: ImageReader, pictures: Sequence[Source], *, html: Path | str | None = None, png: Path | str | None = None
) -> list[PictureRecord]:
    """Where the model looks in each picture.

    `html` names one page for all pictures, with every head, positions and filters; `png` names an image of the
    attention rollout, numbered where there are several pictures.
    """
    pictures = check_pictures(pictures)
    if not pictures:
        raise QkvError("There is no picture to look at: give at least one.")
    images = checked_files(html, png, len(pictures))
    records = [record_picture(use, picture) for picture in pictures]
    if html is not None:
        write_picture_page(records, use.model, Path(html))
    for record, image in zip(records, images, strict=False):
        write_png(draw_picture(record), image)
    return records
