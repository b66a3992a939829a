"""Attention over pictures as pages, in one call."""

from collections.abc import Sequence
from pathlib import Path

from qkv.data.images import Source
from qkv.errors import QkvError
from qkv.generate.image_readers import ImageReader, check_pictures
from qkv.look.picture_maps import PictureRecord, record_picture
from qkv.look.picture_page import write_picture_page


def look_at_pictures(
    use: ImageReader, pictures: Sequence[Source], *, html: Path | str | None = None
) -> list[PictureRecord]:
    """Where the model looks in each picture.

    `html` names one page for all pictures, with the attention rollout, every head, positions and filters.
    """
    pictures = check_pictures(pictures)
    if not pictures:
        raise QkvError("There is no picture to look at: give at least one.")
    records = [record_picture(use, picture) for picture in pictures]
    if html is not None:
        write_picture_page(records, use.model, Path(html))
    return records
