"""A model compiled for answers, where a person asks for it: the first ones wait for the compiler."""

from __future__ import annotations

from typing import Any

from qkv.errors import QkvError
from qkv.models.image_model import ImageModel
from qkv.models.sound_model import SoundModel
from qkv.models.text_model import TextModel
from qkv.parts.narrow_maps import NarrowLinear
from qkv.train.compiling import compile_blocks


def compiled(model: Any) -> Any:
    """The model itself, whose blocks are compiled when they meet a first batch, and for any size at the second size.

    All blocks of a model have one code, in which what lies between two products is one pass over memory. Where blocks
    are run in place (`parts/in_place.py`) that needs no compiler, and is quicker. A model that writes is read token by
    token, which is not compiled here.
    """
    reads = isinstance(model, TextModel) and model.head_choice.kind != "language"
    if not reads and not isinstance(model, ImageModel | SoundModel):
        raise QkvError("Only models that read a text, a picture or a sound as a whole are compiled: leave compile out.")
    if any(isinstance(module, NarrowLinear) for module in model.modules()):
        raise QkvError(
            "Weights held in fewer bits than the stream are not compiled: leave compile out, or take float32."
        )
    # Texts in line are of another size at each batch.
    compile_blocks(model, dynamic=True if isinstance(model, TextModel) else None)
    return model
