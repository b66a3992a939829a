"""The same model for pictures of another size: its positions are interpolated once and for all."""

from __future__ import annotations

from dataclasses import replace

from qkv.errors import QkvError
from qkv.files import copy_into
from qkv.models.catalogue import build
from qkv.models.image_model import ImageModel
from qkv.parts.low_rank import refuse_updates
from qkv.weights.save import tensors_of


def at_resolution(model: ImageModel, side: int) -> ImageModel:
    """A copy for pictures of `side` by `side`, with positions to be learned for all its patches.

    It answers as the model itself does, which interpolates them anew for every batch. [dosovitskiy2021 §3.2]
    """
    refuse_updates(model)
    if not hasattr(model.sizes, "image") or not isinstance(model, ImageModel):
        raise QkvError("Only a model of square pictures, such as a ViT or a DeiT, comes to another resolution.")
    new: ImageModel = build(model.family, replace(model.sizes, image=side), model.head_choice)
    rows, columns = new.embed.grid_of(side, side)
    tensors = {**tensors_of(model), "embed.position.weight": model.embed.position(rows, columns)}
    copy_into(tensors_of(new), tensors, "The model")
    return new.to(next(model.parameters()).device).train(model.training)
