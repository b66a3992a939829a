"""A model of sounds that begins as a model of pictures: what was learned of edges and places serves spectra too."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.files import copy_into
from qkv.models.image_model import ImageModel
from qkv.models.vit import CLASS_TOKEN
from qkv.parts.low_rank import refuse_updates
from qkv.weights.save import tensors_of


def begin_with_pictures(hearer: ImageModel, seer: ImageModel) -> None:
    """Fill an AST with the weights of a ViT or a DeiT, all but its head. [gong2021 §2.2]

    The filters of the patches are averaged over the colours, and positions interpolated to the grid of the spectrum. A
    ViT has no distillation token: its class token serves as both.

    DIFFERS [gong2021 §2.2]: where the spectrum has fewer rows than the picture, positions are interpolated there too,
    and not cut; and by the model's own resampling, not bilinearly.
    """
    refuse_updates(seer)
    refuse_updates(hearer)
    if hearer.family != "ast" or seer.family not in ("vit", "deit") or CLASS_TOKEN not in seer.embed.prefix:
        raise QkvError("An AST begins with a ViT or a DeiT that has a class token, and with no other model.")
    if seer.embed.stem is not None:
        raise QkvError("An AST reads patches of its own, so it cannot begin with a model that has convolutions before.")
    ours, theirs = tensors_of(hearer), tensors_of(seer)
    taken = {name: tensor for name, tensor in theirs.items() if name.startswith(("stack.", "embed.patches."))}
    taken["embed.patches.weight"] = theirs["embed.patches.weight"].mean(1, keepdim=True)  # [d 1 p p]
    for name, token in zip(hearer.embed.prefix, _tokens(hearer, seer), strict=True):
        taken[f"embed.{name}"] = theirs[f"embed.{token}"]
    taken["embed.position.weight"] = _positions(hearer, seer)
    heads = {name: tensor for name, tensor in ours.items() if name.startswith("head.")}
    copy_into(ours, {**taken, **heads}, "The model of pictures")


def _tokens(hearer: ImageModel, seer: ImageModel) -> list[str]:
    """Which token of the seer each one of the hearer's begins with."""
    return [name if name in seer.embed.prefix else CLASS_TOKEN for name in hearer.embed.prefix]


def _positions(hearer: ImageModel, seer: ImageModel) -> Tensor:
    """Those of the seer for the grid of the hearer. [prefix + rows·columns d]"""
    place, known = hearer.embed.position, seer.embed.prefix
    found = seer.embed.position(place.rows, place.columns)
    tokens = [found[known.index(name)] for name in _tokens(hearer, seer)]
    return torch.cat((torch.stack(tokens), found[len(known) :]))
