"""Attention over sounds as pages and images, in one call."""

from collections.abc import Sequence
from pathlib import Path

from qkv.api.looking import checked_files
from qkv.data.sound import Sound
from qkv.errors import QkvError
from qkv.generate.listen import Listener, Spoken
from qkv.generate.sound_readers import SoundReader
from qkv.generate.transcribe import Transcriber
from qkv.look.draw import write_png
from qkv.look.sound_maps import Record, record_sound
from qkv.look.sound_page import write_sound_page
from qkv.look.sounds import draw_sound


def look_at_sounds(
    use: SoundReader | Listener | Transcriber,
    sounds: Sequence[Spoken],
    *,
    html: Path | str | None = None,
    png: Path | str | None = None,
) -> list[Record]:
    """What the model listens to in the first stretch of each sound: as much as it hears at once, or ten seconds.

    `html` names one page for all sounds, with every head; `png` names an image of the whole, numbered where there are
    several sounds.
    """
    if isinstance(sounds, str | bytes | Path | Sound):
        raise QkvError("Give a list of sounds, not a single one: put the one sound into brackets.")
    if not sounds:
        raise QkvError("There is no sound to look at: give at least one.")
    images = checked_files(html, png, len(sounds))
    records = [record_sound(use, sound) for sound in sounds]
    if html is not None:
        write_sound_page(records, use.model, Path(html))
    for record, image in zip(records, images, strict=False):
        write_png(draw_sound(record), image)
    return records
