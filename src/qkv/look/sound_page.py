"""What a model of sound listens to, as one HTML file that needs nothing else: no script, no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qkv.errors import QkvError
from qkv.files import write_whole
from qkv.look.labels import escaped
from qkv.look.picture_page import figure_of, layers_of, whole_page
from qkv.look.pictures import draw_distances, draw_filters
from qkv.look.sound_maps import FrameRecord, Record, SpectrumRecord
from qkv.look.sounds import draw_sound, draw_sound_layer
from qkv.models.image_model import ImageModel

_SPECTRUM = (
    "The spectrum as the model reads it, high tones above low ones, and how much of each place has flowed into the "
    "decision: the attention of all layers multiplied, half of each layer being what passes by it."
)
_FRAMES = (
    "The sound, with what the model writes where it hears it, and how much of each moment has flowed into all that the "
    "model knows in the end. Below, head by head: how much each moment is looked at by all others."
)
_SPOKEN = (
    "The sound with the words at the times when they begin. Below, a line for each token that was written: where the "
    "heads that follow the speaker looked meanwhile, the mean of them. The layers show every head: tokens from top to "
    "bottom, time from left to right."
)
_DISTANCES = "How far each head looks on average, in frames and bands: a point for each head of a layer."
_FILTERS = (
    "The principal components of the matrix that every patch of the spectrum is multiplied by, the strongest first."
)


def sound_page(records: Sequence[Record], model: object = None, title: str = "What the model listens to") -> str:
    """The page as one string of HTML; of a `model` that reads spectra it shows the filters too."""
    if not records:
        raise QkvError("A page needs at least one sound to show, and it was given none.")
    body = "".join(map(_section, records))
    if isinstance(model, ImageModel):
        learned = figure_of(draw_filters(model), _FILTERS)
        body += f"<section><h2>What the model has learned of spectra</h2>\n{learned}</section>\n"
    return whole_page(title, body)


def write_sound_page(records: Sequence[Record], model: object, path: Path) -> Path:
    """Write the page to `path`, whole or not at all."""
    return write_whole(path, sound_page(records, model).encode("utf-8"))


def _section(record: Record) -> str:
    told, more = _SPOKEN, ""
    if isinstance(record, SpectrumRecord):
        told, more = _SPECTRUM, figure_of(draw_distances(record), _DISTANCES)
    elif isinstance(record, FrameRecord):
        told = _FRAMES
    layers = layers_of(len(record.weights), lambda layer: draw_sound_layer(record, layer))
    stretch = f"the first {record.spectrum.seconds:.1f} s"
    said = f" · {escaped(record.said)}" if record.said else ""
    return (
        f"<section><h2>{escaped(record.name)}{said}</h2>\n<p>{stretch}</p>\n{figure_of(draw_sound(record), told)}"
        f"{layers}{more}</section>\n"
    )
