"""Where an image model looks, as one HTML file that needs nothing else: no script, no network."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image

from qkv.errors import QkvError
from qkv.files import write_whole
from qkv.look.labels import escaped
from qkv.look.picture_maps import PictureRecord
from qkv.look.pictures import draw_distances, draw_filters, draw_layer, draw_picture, draw_similarity
from qkv.models.image_model import ImageModel

_STYLE = """
:root { color-scheme: light dark; }
body { margin: 0 auto; max-width: 1080px; padding: 28px; font: 16px/1.55 system-ui, sans-serif; background: #f5f3ed;
  color: #1d1c22; }
section { background: #fff; border: 1px solid #e2dfd6; border-radius: 16px; padding: 22px 26px; margin: 24px 0; }
h1 { font: 400 40px/1.1 Georgia, serif; } h2 { font: 400 24px/1.3 Georgia, serif; overflow-wrap: anywhere; }
img { max-width: 100%; height: auto; } figure { margin: 12px 0; } figcaption, p { color: #55525f; max-width: 46em; }
summary { cursor: pointer; color: #35349a; }
"""
_WHOLE = (
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    'img-src data:">\n<title>{title}</title>\n<style>{style}</style>\n</head>\n'
    "<body>\n<h1>{title}</h1>\n{body}</body>\n</html>\n"
)
_ROLLOUT = (
    "The picture as the model sees it, and beside it how much of each place has flowed into the decision: the "
    "attention of all layers multiplied, half of each layer being what passes by it."
)
_SIMILARITY = (
    "One small map for each place of the grid: how alike its learned position is to those of all places. Where a "
    "model has learned what lies near what, each map is darkest at its own place, and its row and column stand out."
)
_FILTERS = "The principal components of the matrix that every patch is multiplied by, the strongest first."
_DISTANCES = "How far each head looks on average, in pixels of the picture: a point for each head of a layer."


def picture_page(records: Sequence[PictureRecord], model: ImageModel, title: str = "Where the model looks") -> str:
    """The page as one string of HTML."""
    if not records:
        raise QkvError("A page needs at least one picture to show, and it was given none.")
    learned = (
        "<section><h2>What the model has learned of pictures</h2>\n"
        f"{figure_of(draw_filters(model), _FILTERS)}{figure_of(draw_similarity(model), _SIMILARITY)}</section>\n"
    )
    body = "".join(map(_section, records)) + learned
    return whole_page(title, body)


def whole_page(title: str, body: str) -> str:
    """A page that loads nothing from elsewhere."""
    return _WHOLE.format(title=escaped(title), style=_STYLE, body=body)


def layers_of(count: int, draw: Callable[[int], Image.Image]) -> str:
    """A figure a layer, to be opened; the last one is open."""
    return "".join(
        f"<details{' open' if number == count - 1 else ''}><summary>Layer {number + 1}</summary>\n"
        f"{figure_of(draw(number), '')}</details>\n"
        for number in range(count)
    )


def write_picture_page(records: Sequence[PictureRecord], model: ImageModel, path: Path) -> Path:
    """Write the page to `path`, whole or not at all."""
    return write_whole(path, picture_page(records, model).encode("utf-8"))


def _section(record: PictureRecord) -> str:
    layers = layers_of(len(record.weights), lambda layer: draw_layer(record, layer))
    said = f" · {escaped(record.said)}" if record.said else ""
    return (
        f"<section><h2>{escaped(record.name)}{said}</h2>\n{figure_of(draw_picture(record), _ROLLOUT)}"
        f"{layers}{figure_of(draw_distances(record), _DISTANCES)}</section>\n"
    )


def figure_of(image: Image.Image, caption: str) -> str:
    """An image within the page, with a line under it where there is one."""
    stream = io.BytesIO()
    image.save(stream, "PNG", optimize=True)
    data = base64.b64encode(stream.getvalue()).decode()
    told = f"<figcaption>{escaped(caption)}</figcaption>" if caption else ""
    return f'<figure><img alt="{escaped(caption)}" src="data:image/png;base64,{data}">{told}</figure>\n'
